"""Client libraries of both protocol families; they import no server, Ray or log."""
