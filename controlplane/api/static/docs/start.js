"use strict";
// Nothing leaves the page but requests to this control plane; a token typed in is forgotten with the page.
window.addEventListener("load", function () {
  window.SwaggerUIBundle({
    url: "openapi.json",
    dom_id: "#page",
    deepLinking: true,
    docExpansion: "none",
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    persistAuthorization: false,
    validatorUrl: null,
    showExtensions: true,
    operationsSorter: "alpha",
    presets: [window.SwaggerUIBundle.presets.apis],
  });
});
