"""`mentalese demo`: small models that think, trained in minutes and shown on one page."""
