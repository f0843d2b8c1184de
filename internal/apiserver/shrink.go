package apiserver

// idleCRDs is how many CRDs' handlers are kept of a process with nothing to do.
const idleCRDs = 16

// Shrink lets go of most of what is kept to save time: the process has nothing to do.
func (s *Server) Shrink() {
	s.config.Cell.Shrink()
	s.listers.Shrink()
	s.rules.Shrink()
	s.crds.(*customResources).shrink()
}

func (c *customResources) shrink() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.handlers.Len() > idleCRDs {
		c.handlers.RemoveOldest()
	}
}
