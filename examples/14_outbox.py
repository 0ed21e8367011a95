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
    """Sends a mail for each key once. Its answers to requests 1 and 4 are lost."""

    protocol_version = "HTTP/1.1"
    requests, mails = 0, {}
    lock = threading.Lock()

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            MailServer.requests += 1
            number = self.requests
            if order["amount"] > 0:
                self.mails.setdefault(self.headers["Idempotency-Key"], f"{order['customer']}: order {order['id']}")
        if number in (1, 4):
            self.close_connection = True
            return
        self.send_response(422 if order["amount"] <= 0 else 503 if number == 2 else 200)
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
    print(f"requests: {MailServer.requests}, mails: {len(MailServer.mails)}")
    for mail in sorted(MailServer.mails.values()):
        print(f"  {mail}")
    for file in sorted((warehouse / "outbox__mails__outbox" / "refused").iterdir()):
        for letter in map(json.loads, file.read_text().splitlines()):
            print(f"refused with status {letter['status']}: {letter['body']}")


if __name__ == "__main__":
    main()
