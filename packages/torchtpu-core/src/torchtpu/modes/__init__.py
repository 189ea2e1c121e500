"""How work runs: strict is the plain launch in `dispatch.call`; debug waits and checks."""
