package eventlog

// Seen is the highest revision that the log knows to exist.
func (l *Log) Seen() Revision { return Revision(l.seen.Load()) }
