// The search of this site when it is read from a folder: browsers start no Worker for file:, so it runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      this.waiting = []
      window.addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
      })
      const inside = frame.contentWindow.document
      inside.open()
      inside.write(
        "<!doctype html><html><body><script>postMessage = (data) => parent.postMessage(data, '*')</" + "script>" +
        `<script src="${new URL(url, document.baseURI)}"></` + "script></body></html>",
      )
      inside.close()
      frame.contentWindow.addEventListener("load", () => {
        for (const data of this.waiting) frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
        this.waiting = null
      })
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
