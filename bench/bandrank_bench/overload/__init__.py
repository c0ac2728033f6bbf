"""How the service behaves with more requests than it can answer, and how one client's flood affects another."""
