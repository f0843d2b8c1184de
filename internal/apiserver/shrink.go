package apiserver

// Shrink drops most of what the caches hold. An idle process calls it.
func (s *Server) Shrink() {
	s.config.Cell.Shrink()
	s.listers.Shrink()
	s.rules.Shrink()
	s.nodes.Shrink()
	s.crds.Shrink()
	s.aggregator.Shrink()
}
