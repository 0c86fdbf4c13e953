// Shows the page's notifications where a browser takes them from a worker only, and leads back to the page. Keeps nothing.

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const address = `/#s/${encodeURIComponent((event.notification.data || {}).id || "")}`;
  event.waitUntil(
    self.clients.matchAll({ type: "window", includeUncontrolled: true }).then((pages) => {
      const page = pages.find((client) => new URL(client.url).origin === self.location.origin);
      if (!page) return self.clients.openWindow(address);
      page.postMessage({ address });
      return page.focus();
    }),
  );
});
