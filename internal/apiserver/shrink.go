package apiserver

// Shrink drops most of what the caches hold. It is for a process that has nothing to do.
func (s *Server) Shrink() {
	s.config.Cell.Shrink()
	s.listers.Shrink()
	s.rules.Shrink()
	s.nodes.Shrink()
	s.crds.Shrink()
	s.aggregator.Shrink()
}
