"""The Content Security Policy of the pages, as data; settings read it."""

from csp.constants import NONE, SELF

# No inline script or style anywhere in our own pages; data reaches scripts as JSON in inert elements.
POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}
