"""14: an outbox. Orders go into a Delta table, and a confirmation of each to an HTTP server, once.

    pip install 'trident-spark[http]'
    python examples/14_outbox.py

The server here fails at first, and loses answers to requests that it has taken. So requests come again, with the
Idempotency-Key that they had before, and by that the server knows them. One order it refuses for good.
"""

import json
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from trident import DeltaAppend, FixedBatchSpout, HttpState, TridentTopology

ORDERS = [[(1, "ann", 30.0), (2, "bob", -5.0), (3, "cid", 12.5)], [(4, "ann", 8.0), (5, "dee", 99.0)]]


class MailServer(BaseHTTPRequestHandler):
    """Sends a mail for each key once. Its first answers about orders 1 and 4 are lost; at first it is busy for 3."""

    protocol_version = "HTTP/1.1"
    keys, mails = [], {}
    lock = threading.Lock()

    def do_POST(self) -> None:
        order, key = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.headers["Idempotency-Key"]
        with self.lock:
            first = key not in self.keys
            self.keys.append(key)
            if order["amount"] < 0:
                status = 422
            elif order["id"] == 3 and first:
                status = 503
            else:
                status = 200
                self.mails.setdefault(key, f"{order['customer']}: order {order['id']}")
        if order["id"] in (1, 4) and first:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), MailServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    warehouse = Path(tempfile.mkdtemp(prefix="trident-example-")) / "w"

    topology = TridentTopology("outbox")
    orders = topology.new_stream("orders", FixedBatchSpout("id long, customer string, amount double", ORDERS))
    orders.partition_persist(DeltaAppend("outbox_orders"))
    url = f"http://127.0.0.1:{server.server_port}/mails"
    orders.partition_persist(HttpState(url, "mails", honours_keys=True, dead_letters=True))

    query = topology.start(warehouse=str(warehouse))
    query.process_all_available()
    print("orders in the table:", query.snapshot("outbox_orders").count())
    query.stop()
    server.shutdown()
    print(f"requests: {len(MailServer.keys)}, mails: {len(MailServer.mails)}")
    for mail in sorted(MailServer.mails.values()):
        print(f"  {mail}")
    for file in sorted((warehouse / "outbox__mails__outbox" / "refused").iterdir()):
        for letter in map(json.loads, file.read_text().splitlines()):
            print(f"refused with status {letter['status']}: {letter['body']}")


if __name__ == "__main__":
    main()
