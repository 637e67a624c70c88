"""Which host owns which partition: the placer, its view of the hosts, its plans."""
