package eventlog

// Key names one object. It is an event's subject in the log (Subject) and a row's key in the
// projection (Row); both are derived from it, and ParseSubject together with the prefix carried by
// the event gives it back.
type Key struct {
	// Cluster is the logical cluster (tenant), 'main' by default. Never empty.
	Cluster string
	// Group is the API group, empty for the core group.
	Group string
	// Resource is the plural resource name, for example 'pods'.
	Resource string
	// Prefix is upstream's storage prefix of the resource, for example '/services/specs'. It starts
	// with a slash and does not end with one.
	Prefix string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	// Name is the object's name. Never empty.
	Name string
}

// Path is upstream's storage path: '/services/specs/ns/name', or '/minions/name' without a namespace.
func (k Key) Path() string {
	if k.Namespace == "" {
		return k.Prefix + "/" + k.Name
	}
	return k.Prefix + "/" + k.Namespace + "/" + k.Name
}

// Row is the key of the object's rows in the projection: the cluster and the storage path. Rows
// compare bytewise, so that list order is path order in every process.
func (k Key) Row() string { return k.Cluster + k.Path() }

// Subject is '<prefix>.log.<cluster>.<group>.<resource>.<namespace>.<name>', each token escaped
// (eventlog.md, Subjects). It fails with ErrKeyTooLong over 3,900 bytes.
func (k Key) Subject(prefix string) (string, error) { panic("todo") }

// ParseSubject is the inverse of Subject; the Key's Prefix is left empty, as the subject does not hold it.
func ParseSubject(prefix, subject string) (Key, error) { panic("todo") }
