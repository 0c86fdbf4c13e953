"""Records runs, finds recordings, and replays them."""
