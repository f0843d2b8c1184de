package apiserver

// Shrink lets go of most of what is kept to save time: the process has nothing to do.
func (s *Server) Shrink() {
	s.config.Cell.Shrink()
	s.listers.Shrink()
	s.rules.Shrink()
	s.crds.Shrink()
}
