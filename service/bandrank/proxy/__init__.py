"""A proxy in front of a search engine that cannot call out: it passes everything through, and re-ranks searches."""
