"""Planning over a store, worker processes and outputs. `wiring` names every concrete class, once."""
