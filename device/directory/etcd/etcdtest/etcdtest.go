package etcdtest

import (
	"cmp"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Server is a member of etcd. Its keys outlive Stop.
type Server struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	keys      map[string]*mvccpb.KeyValue
	history   []*mvccpb.Event // in the order of their revisions
	leases    map[int64]*lease
	lastLease int64
	kept      int // leases that were kept alive
	signs     int // signs of life that watches were asked for
	refusal   error
	hangs     chan struct{} // closed when it goes on; nil: it does not hang
	changed   chan struct{} // closed at the next change of any of the above
	server    *grpc.Server
}

type lease struct {
	ttl  int64 // in seconds
	ends time.Time
}

// New returns a member with no keys. It serves nobody before Start.
func New() *Server {
	return &Server{revision: 1, keys: map[string]*mvccpb.KeyValue{}, leases: map[int64]*lease{}, changed: make(chan struct{})}
}

// Start serves clients on l until Stop, with TLS unless c is nil.
func (s *Server) Start(l net.Listener, c *tls.Config) {
	options := []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := s.admit(ctx); err != nil {
				return nil, err
			}
			return h(ctx, r)
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}), // as etcd's
	}
	if c != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(c)))
	}
	g := grpc.NewServer(options...)
	pb.RegisterKVServer(g, kv{s: s})
	pb.RegisterWatchServer(g, watches{s: s})
	pb.RegisterLeaseServer(g, leases{s: s})
	s.mu.Lock()
	s.server = g
	s.mu.Unlock()
	go func() { _ = g.Serve(l) }()
}

// Stop ends all connections, as if the member was killed.
func (s *Server) Stop() {
	s.Hang(false)
	s.mu.Lock()
	g := s.server
	s.server = nil
	s.mu.Unlock()
	if g != nil {
		g.Stop()
	}
}

// Hang has the member answer nothing until it is called with false: its connections stay.
func (s *Server) Hang(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.hangs == nil:
		s.hangs = make(chan struct{})
	case !on && s.hangs != nil:
		close(s.hangs)
		s.hangs = nil
	}
	s.tell()
}

// Refuse has all requests fail, also watches that run; nil: none any more.
func (s *Server) Refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = err
	s.tell()
}

// Put writes a key as an operator does.
func (s *Server) Put(key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, []byte(value), 0)
}

// Delete deletes keys, in one revision.
func (s *Server) Delete(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delete(keys)
}

// Get returns a key's value; "": there is none.
func (s *Server) Get(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return string(s.keys[key].GetValue())
}

// Revision returns the number of changes so far.
func (s *Server) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// KeptAlive counts how often leases were kept alive and those that asked for it had the answer.
func (s *Server) KeptAlive() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept
}

// SignsOfLife counts how often watches were asked for a sign of life.
func (s *Server) SignsOfLife() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signs
}

// Compact forgets all changes up to now.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = s.revision
}

// EndLeases has all leases run out now.
func (s *Server) EndLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		l.ends = time.Time{}
	}
	s.expire()
}

// tell wakes those that wait for a change.
func (s *Server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) put(key string, value []byte, lease int64) {
	s.revision++
	k := &mvccpb.KeyValue{Key: []byte(key), Value: value, CreateRevision: s.revision, ModRevision: s.revision, Version: 1, Lease: lease}
	if old := s.keys[key]; old != nil {
		k.CreateRevision, k.Version = old.CreateRevision, old.Version+1
	}
	s.keys[key] = k
	s.history = append(s.history, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: k})
	s.tell()
}

func (s *Server) delete(keys []string) {
	slices.Sort(keys)
	s.revision++
	for _, key := range keys {
		if s.keys[key] != nil {
			delete(s.keys, key)
			s.history = append(s.history, &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: s.revision}})
		}
	}
	s.tell()
}

// expire ends leases whose time is over, with their keys.
func (s *Server) expire() {
	for _, id := range slices.Sorted(maps.Keys(s.leases)) {
		if time.Now().After(s.leases[id].ends) {
			s.revoke(id)
		}
	}
}

func (s *Server) revoke(id int64) {
	delete(s.leases, id)
	var keys []string
	for key, k := range s.keys {
		if k.Lease == id {
			keys = append(keys, key)
		}
	}
	if len(keys) > 0 {
		s.delete(keys)
	}
}

// admit waits while the member hangs, and returns why it refuses a request.
func (s *Server) admit(ctx context.Context) error {
	for {
		s.mu.Lock()
		hangs, refusal := s.hangs, s.refusal
		s.expire()
		s.mu.Unlock()
		if hangs == nil {
			return refusal
		}
		select {
		case <-hangs:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Server) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 1, MemberId: 1, Revision: s.revision, RaftTerm: 1}
}

// within reports whether a key is in [from, end), or is from itself.
func within(key, from, end string) bool { return key == from || key > from && key < end }

type kv struct {
	pb.UnimplementedKVServer
	s *Server
}

// Range answers a list of keys as of now.
func (k kv) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	var list []*mvccpb.KeyValue
	for key, v := range k.s.keys {
		if within(key, string(r.Key), string(r.RangeEnd)) {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(string(a.Key), string(b.Key)) })
	return &pb.RangeResponse{Header: k.s.header(), Kvs: list, Count: int64(len(list))}, nil
}

// Put writes a key.
func (k kv) Put(_ context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if r.Lease != 0 && k.s.leases[r.Lease] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	k.s.put(string(r.Key), r.Value, r.Lease)
	return &pb.PutResponse{Header: k.s.header()}, nil
}

type leases struct {
	pb.UnimplementedLeaseServer
	s *Server
}

// LeaseGrant gives a lease.
func (l leases) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.lastLease++
	l.s.leases[l.s.lastLease] = &lease{r.TTL, time.Now().Add(time.Duration(r.TTL) * time.Second)}
	return &pb.LeaseGrantResponse{Header: l.s.header(), ID: l.s.lastLease, TTL: r.TTL}, nil
}

// LeaseRevoke ends a lease.
func (l leases) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.leases[r.ID] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	l.s.revoke(r.ID)
	return &pb.LeaseRevokeResponse{Header: l.s.header()}, nil
}

// LeaseKeepAlive gives leases their whole time again.
func (l leases) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	answered := 0
	for {
		r, err := stream.Recv()
		if err != nil {
			l.s.mu.Lock()
			l.s.kept += answered
			l.s.mu.Unlock()
			return nil // the client has what it wanted
		}
		if err := l.s.admit(stream.Context()); err != nil {
			return err
		}
		l.s.mu.Lock()
		a := &pb.LeaseKeepAliveResponse{Header: l.s.header(), ID: r.ID} // with no time left: there is no such lease
		if has := l.s.leases[r.ID]; has != nil {
			has.ends, a.TTL = time.Now().Add(time.Duration(has.ttl)*time.Second), has.ttl
		}
		l.s.mu.Unlock()
		if err := stream.Send(a); err != nil {
			return err
		}
		if a.TTL > 0 {
			answered++
		}
	}
}

type watches struct {
	pb.UnimplementedWatchServer
	s *Server
}

type watcher struct {
	from, end string
	next      int64 // revision
}

// Watch serves the watches of a stream, until the client ends it or the member refuses it.
func (w watches) Watch(stream pb.Watch_WatchServer) error {
	requests := make(chan *pb.WatchRequest)
	go func() {
		defer close(requests)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	running := map[int64]*watcher{}
	last := int64(0)
	for {
		if err := w.s.admit(stream.Context()); err != nil {
			return err
		}
		answers, changed := w.report(running)
		for _, a := range answers {
			if err := stream.Send(a); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case r, more := <-requests:
			if !more {
				return nil
			}
			if err := w.s.admit(stream.Context()); err != nil {
				return err
			}
			w.s.mu.Lock()
			a := &pb.WatchResponse{Header: w.s.header()}
			if r.GetProgressRequest() != nil {
				w.s.signs++
			}
			w.s.mu.Unlock()
			switch {
			case r.GetCreateRequest() != nil:
				c := r.GetCreateRequest()
				x := &watcher{string(c.Key), string(c.RangeEnd), c.StartRevision}
				if x.next == 0 {
					x.next = a.Header.Revision + 1
				}
				a.WatchId, a.Created = last, true
				running[last] = x
				last++
			case r.GetCancelRequest() != nil:
				a.WatchId, a.Canceled = r.GetCancelRequest().WatchId, true
				delete(running, a.WatchId)
			default:
				a.WatchId = -1 // for all watches of the stream
			}
			if err := stream.Send(a); err != nil {
				return err
			}
		}
	}
}

// report returns what watchers have not been told yet, and a channel that is closed at the next change.
func (w watches) report(running map[int64]*watcher) (list []*pb.WatchResponse, changed <-chan struct{}) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range running {
		a := &pb.WatchResponse{Header: s.header(), WatchId: id}
		if x.next <= s.compacted {
			a.Canceled, a.CompactRevision = true, s.compacted
			delete(running, id)
			list = append(list, a)
			continue
		}
		for _, e := range s.history {
			if e.Kv.ModRevision >= x.next && within(string(e.Kv.Key), x.from, x.end) {
				a.Events = append(a.Events, e)
			}
		}
		if x.next = s.revision + 1; len(a.Events) > 0 {
			list = append(list, a)
		}
	}
	return list, s.changed
}
