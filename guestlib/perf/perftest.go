package perf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// The other end of a test may be a program of perftest. They meet over TCP, at the port whose number
// is our service's, and connect queue pairs by their numbers and GIDs:
//
//	all                        keys of each queue pair, keys of each again, keys of the first
//	  latency but send_lat     keys before them, too
//	write_bw read_bw atomic_bw the test; then keys, reports; the server has measured nothing
//	read_lat atomic_lat        the test; the server has measured nothing
//	write_lat                  the test, which the server begins
//	send_bw send_lat           for each size keys and the test; with all sizes send_bw has keys after it
//	all but write_lat          keys, "done"
//
// Neither end tells its sizes and iterations. Where both count (SENDs and write_lat) they have to be
// told the same.

const (
	// dialTime bounds the attempt to reach a server of perftest.
	dialTime = time.Second
	// ahead is how long this end may need to finish a test that the other end has finished.
	ahead = 5 * time.Second
	// patience is the timeout of queue pairs: perftest's own (14) is too short for a guest that gets
	// no processor for half a second.
	patience = 18
)

// atPort is the TCP address that perftest's programs use for a service; "" where there is none.
func atPort(host string, service uint64) string {
	if service == 0 || service > 65535 {
		return ""
	}
	return net.JoinHostPort(host, strconv.FormatUint(service, 10))
}

// acceptPerftest returns the first client of perftest that comes to l, or nil when ctx ends.
func acceptPerftest(ctx context.Context, l net.Listener) *perftest.Conn {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		if p, err := perftest.Server(ctx, c); err == nil {
			return p
		}
	}
}

// expectPerftest waits for a client of perftest that looks for a server here, and then ends the
// context looking. stop returns the client's connection. If there is no port, or it is taken, no
// client can come.
func (s *session) expectPerftest(ctx context.Context) (looking context.Context, stop func() *perftest.Conn) {
	looking, end := context.WithCancel(ctx)
	at := atPort("", s.Service)
	if at == "" || s.Op == Doorbell {
		return looking, func() *perftest.Conn { end(); return nil }
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return looking, func() *perftest.Conn { end(); return nil }
	}
	came := make(chan *perftest.Conn, 1)
	go func() {
		came <- acceptPerftest(looking, l)
		_ = l.Close()
		end()
	}()
	return looking, func() *perftest.Conn { end(); return <-came }
}

// dialPerftest begins with a server of perftest at the peer. Something else may take every
// connection, as some proxies do, and a server of ours hangs up: that is ErrStranger.
func (s *session) dialPerftest(ctx context.Context) (*perftest.Conn, error) {
	at := atPort(netip.AddrFrom16(s.Peer).Unmap().String(), s.Service)
	if at == "" {
		return nil, perftest.ErrStranger
	}
	c, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	return perftest.Client(ctx, c)
}

// foreign is a test whose other end is a program of perftest.
type foreign struct {
	*session
	conn *perftest.Conn
	own  []perftest.Keys // of each queue pair
}

// bothCount reports whether both ends count messages.
func (s *session) bothCount() bool { return s.Op == Send || s.pingpong() }

// fits refuses what cannot be measured with a program of perftest, and takes its defaults.
func (f *foreign) fits(given Config) error {
	var wrong []string
	refuse := func(bad bool, why string) {
		if bad {
			wrong = append(wrong, why)
		}
	}
	refuse(f.Datagrams, "leave out -c UD: only RC is supported")
	refuse(f.Bidirectional, "leave out -b: only one direction is supported")
	refuse(f.All && f.bothCount() && f.Size != perftestAll, "leave out --size: its --all goes up to 8388608 bytes")
	refuse(f.Duration > 0 && f.bothCount(), "use --iters, the same at both ends, instead of --duration")
	if len(wrong) > 0 {
		return fmt.Errorf("the other end is a program of perftest (%s): %s", f.conn.Version, strings.Join(wrong, "; "))
	}
	if given.Iterations == 0 && f.Op == Send && !f.Latency {
		f.Iterations = 1000
	}
	return nil
}

// perftestAll is the largest of all sizes of perftest's programs.
const perftestAll = 8 << 20

// connectAll makes the queue pairs and connects them.
func (f *foreign) connectAll(ctx context.Context) error {
	number, around, err := f.conn.Settle(uint8(abi.PathMTUFor(f.header().MTU)))
	if err != nil {
		return err
	}
	f.MTU, f.around = abi.PathMTU(number).Bytes(), around
	if f.qps == nil {
		if err := f.prepare(ctx); err != nil {
			return err
		}
	}
	reads := f.dev.Limits().MaxReadAtomic
	if f.Outs > 0 {
		reads = min(reads, uint8(f.Outs))
	}
	for i, qp := range f.qps {
		a := qp.Address()
		f.own = append(f.own, perftest.Keys{
			QPN: a.QPN, GID: a.GID, PSN: rand.Uint32N(1 << 24), RKey: f.mr.RKey(), Addr: f.mr.Addr() + uint64(f.inbox(i)), Reads: reads,
		})
	}
	if f.Latency && f.Op != Send {
		if err := f.sync(); err != nil {
			return err
		}
	}
	for i, qp := range f.qps {
		peer, err := f.conn.Keys(&f.own[i])
		if err != nil {
			return err
		}
		if err := f.connect(ctx, qp, &f.own[i], peer); err != nil {
			return fmt.Errorf("queue pair %d of %d: %w", i+1, len(f.qps), err)
		}
		f.remote, f.Peer = append(f.remote, region{peer.Addr, peer.RKey}), peer.GID
	}
	for i := range f.qps {
		if _, err := f.conn.Keys(&f.own[i]); err != nil {
			return err
		}
	}
	return f.sync()
}

// sync waits for the other end.
func (f *foreign) sync() error {
	_, err := f.conn.Keys(&f.own[0])
	return err
}

// connect takes a queue pair to RTS.
func (f *foreign) connect(ctx context.Context, qp *guestlib.QP, own, peer *perftest.Keys) error {
	p, timeout := f.Path, uint8(patience)
	if f.Timeout > 0 {
		timeout = uint8(f.Timeout)
	}
	err := qp.Modify(ctx, abi.ModifyQP{
		FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL,
		State: abi.QPStateRTR, PathMTU: abi.PathMTUFor(f.MTU), DestQPN: peer.QPN, DGID: peer.GID, RQPSN: peer.PSN, MinRNRTimer: 12, MaxDestRdAtomic: own.Reads,
		Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer,
	})
	if err != nil {
		return err
	}
	return qp.Modify(ctx, abi.ModifyQP{
		State: abi.QPStateRTS, Timeout: timeout, RetryCnt: 7, RNRRetry: 7, SQPSN: own.PSN, MaxRdAtomic: min(own.Reads, peer.Reads),
		Mask: abi.QPAttrState | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic,
	})
}

// runForeign is the test with a program of perftest.
func (s *session) runForeign(ctx context.Context, conn *perftest.Conn, given Config) (rows []Row, err error) {
	f := &foreign{session: s, conn: conn}
	hangUp := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		hangUp()
		_ = conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", s.Test, err)
		}
	}()
	s.foreign = true
	if err := f.fits(given); err != nil {
		return nil, err
	}
	if err := f.connectAll(ctx); err != nil {
		return nil, err
	}
	if s.Header != nil {
		h := s.header()
		h.Perftest = conn.Version
		s.Header(h)
	}
	rows = []Row{}
	have := func(r *Row) {
		if s.Row != nil {
			s.Row(r)
		}
		rows = append(rows, *r)
	}
	if s.client || s.bothCount() {
		for _, size := range s.sizes() {
			r, err := f.row(ctx, size)
			if err != nil {
				return rows, fmt.Errorf("%d bytes: %w", size, err)
			}
			have(r)
		}
	}
	if !s.Latency && s.Op != Send {
		theirs, err := f.reports(rows)
		if err != nil {
			return rows, err
		}
		if !s.client {
			have(theirs)
		}
	}
	if s.Op != Write || !s.Latency {
		if err := conn.Done(&f.own[0]); err != nil {
			return rows, err
		}
	}
	conn.Leave()
	return rows, nil
}

// reports tells the last row, and returns the client's.
func (f *foreign) reports(rows []Row) (*Row, error) {
	if err := f.sync(); err != nil {
		return nil, err
	}
	var mine perftest.Report
	if n := len(rows); n > 0 {
		r := &rows[n-1]
		mine = perftest.Report{Bytes: uint64(r.Bytes), Iterations: uint64(r.Iterations), Peak: r.PeakMBs, Average: r.BWMBs, Rate: r.MsgRate}
	}
	r, err := f.conn.Report(&mine)
	if err != nil {
		return nil, err
	}
	return &Row{Bytes: int(r.Bytes), Iterations: int(r.Iterations), PeakMBs: r.Peak, BWMBs: r.Average, MsgRate: r.Rate}, nil
}

// row measures one size.
func (f *foreign) row(ctx context.Context, size int) (*Row, error) {
	if f.Op == Send {
		if err := f.sync(); err != nil {
			return nil, err
		}
	}
	r := &Row{Bytes: size}
	f.done, f.received = 0, 0
	err := f.watched(ctx, func(ctx context.Context) error {
		switch {
		case f.pingpong():
			return f.pingPong(ctx, r)
		case f.Latency:
			return f.oneByOne(ctx, r)
		case f.client:
			return f.bandwidth(ctx, r)
		}
		return f.receive(ctx, r)
	})
	if err == nil && f.All && f.Op == Send && !f.Latency {
		err = f.sync()
	}
	return r, err
}

// receive takes the messages of a client that does not tell when it has sent them.
func (s *session) receive(ctx context.Context, r *Row) error {
	start := s.now()
	end := start
	for n := s.Iterations * s.QPs; s.received < n; {
		before := s.received
		if err := s.refill(); err != nil {
			return err
		}
		switch {
		case s.received > before:
			end = s.now()
			continue
		case before == 0:
			start = s.now()
		}
		if err := errors.Join(lost(s.qps[0]), s.idle(ctx, s.rcq)); err != nil {
			return err
		}
	}
	if err := r.rates(s.received, end-start); err != nil {
		return err
	}
	r.PeakMBs = r.BWMBs
	return nil
}

// watched does its part of a test while it looks whether the other end still does its own: nothing
// else tells that a program has ended, or that it was told another number of messages.
func (f *foreign) watched(ctx context.Context, test func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		why := errors.New("the program of perftest is through with it and this end is not: tell both the same --size and --iters")
		if err := f.conn.Hear(); err != nil {
			why = fmt.Errorf("the program of perftest has ended, see what it says: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(ahead):
			end(why)
		}
	}()
	err := test(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	end(nil)
	f.conn.Interrupt()
	<-told
	f.conn.Resume()
	return err
}
