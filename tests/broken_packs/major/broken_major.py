"""Written for the next major pack API, whose packs this core must not even import."""

raise SystemExit("imported")
