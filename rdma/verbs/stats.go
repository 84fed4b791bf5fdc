package verbs

// Stats counts events of the objects of a function.
type Stats struct {
	Posted      uint64 // send work requests read
	Completed   uint64 // CQEs written
	Flushed     uint64 // of Completed: with WCWRFlushErr
	Errors      uint64 // of Completed: with any other error
	CQOverflows uint64 // completion queues that overflowed
	QPErrors    uint64 // QPs that moved to ERR because of a failure
	BadQKeys    uint64 // datagrams with the wrong Q_Key
	Doorbells   uint64 // doorbells received

	BadDoorbells uint64 // of Doorbells: name no queue
}

// Add adds x to s.
func (s *Stats) Add(x *Stats) {
	s.Posted += x.Posted
	s.Completed += x.Completed
	s.Flushed += x.Flushed
	s.Errors += x.Errors
	s.CQOverflows += x.CQOverflows
	s.QPErrors += x.QPErrors
	s.BadQKeys += x.BadQKeys
	s.Doorbells += x.Doorbells
	s.BadDoorbells += x.BadDoorbells
}
