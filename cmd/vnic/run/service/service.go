package service

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
)

// Number is the service that functions connect to, of all kinds: the port of the echo protocol (RFC
// 862).
const Number = 7

const (
	// QKey is the Q_Key of the datagram queue pair.
	QKey = 0x76736563
	// MaxMessage is the longest message that a service takes.
	MaxMessage = 16 << 10
	// RegionSize is the size of the region of memory and pattern.
	RegionSize = 1 << 20

	receives   = 16 // posted on each queue pair
	maxPeers   = 64 // served at once; the oldest gives way to one more
	memorySize = 64 << 20

	linger = time.Second // how long a queue pair stays when its connection has ended

	connectTime = 10 * time.Second // for a peer to come up
	connecting  = 16               // peers at once; further ones wait with the NIC, which bounds them

	// A service begins anew after a pause, which doubles until one lives for longer than longLife.
	firstPause = time.Second
	lastPause  = time.Minute
	longLife   = time.Minute
)

// Pattern returns byte i of the pattern.
func Pattern(i int) byte { return byte(i % 251) }

// Welcome is what a service tells a peer: in the private data of the accepted connection, and in the
// answer to a wire request.
//
//	 0        8        16    20      24          28    32
//	┌────────┬────────┬─────┬───────┬───────────┬─────┬─────┐
//	│VNICSERV│address │rkey │length │datagram QP│QKey │ QPN │  little-endian
//	└────────┴────────┴─────┴───────┴───────────┴─────┴─────┘
type Welcome struct {
	Addr     uint64 // of the region; 0: none
	RKey     uint32
	Length   uint32
	Datagram uint32 // number of the queue pair that takes datagrams
	QKey     uint32
	QPN      uint32 // of the queue pair that was made for the peer
}

const (
	welcomeMagic = "VNICSERV"
	welcomeSize  = 36
	// wireMagic begins a datagram that asks for a queue pair, wired to the sender's number behind it:
	// for a peer that connects by number (ModifyQP), as every peer over RoCEv2 does.
	wireMagic = "VNICWIRE"
)

// Append appends the form in which a service sends w.
func (w *Welcome) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, welcomeMagic...), w.Addr)
	for _, v := range []uint32{w.RKey, w.Length, w.Datagram, w.QKey, w.QPN} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// ParseWelcome reads a Welcome.
func ParseWelcome(b []byte) (w Welcome, err error) {
	if len(b) < welcomeSize || string(b[:8]) != welcomeMagic {
		return w, fmt.Errorf("%d bytes that begin with %q are not a service's welcome", len(b), b[:min(len(b), 8)])
	}
	w.Addr = binary.LittleEndian.Uint64(b[8:])
	for i, v := range []*uint32{&w.RKey, &w.Length, &w.Datagram, &w.QKey, &w.QPN} {
		*v = binary.LittleEndian.Uint32(b[16+4*i:])
	}
	return w, nil
}

// WireRequest is the datagram that asks a service for a queue pair wired to qpn of the sender.
func WireRequest(qpn uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte(wireMagic), qpn)
}

// Service is a function that the NIC itself drives.
type Service struct {
	Function string // as in the configuration: pf0.vf2
	Kind     string // config.ServiceEcho and so on
}

// Of lists the services of a configuration.
func Of(cfg *config.Config) (list []Service) {
	for _, f := range cfg.AllFunctions() {
		if f.Service != "" {
			list = append(list, Service{f.String(), f.Service})
		}
	}
	return list
}

// Attachment is how the services reach their functions.
type Attachment struct {
	qemu.InProcess
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Start starts services. They wait until the NIC accepts them.
func Start(list []Service, memory *guestmem.Budget, log *slog.Logger) *Attachment {
	a := &Attachment{InProcess: qemu.NewInProcess(memory)}
	var ctx context.Context
	ctx, a.stop = context.WithCancel(context.Background())
	for _, s := range list {
		a.running.Go(func() { s.run(ctx, a.Dial, log.With("function", s.Function, "service", s.Kind)) })
	}
	return a
}

// Close ends the services.
func (a *Attachment) Close() error {
	a.stop()
	err := a.InProcess.Close()
	a.running.Wait()
	return err
}

// run drives the function until ctx ends. When the function is reset or lost, it begins anew.
func (s Service) run(ctx context.Context, dial dialer, log *slog.Logger) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		start := time.Now()
		err := s.serve(ctx, dial, log)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > longLife {
			pause = firstPause
		}
		log.Warn("the service ended, and begins anew", "reason", err, "in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// life is the service from opening the function until it is lost.
type life struct {
	kind string
	dev  *guestlib.Device
	pd   *guestlib.PD
	mr   *guestlib.MR // nil: none
	ud   *end
	log  *slog.Logger

	running sync.WaitGroup

	mu    sync.Mutex
	peers []*peer // the oldest first; some may have ended
}

// peer is a queue pair of a peer that a service serves or is to serve.
type peer struct {
	at   guestlib.QPAddress
	stop context.CancelFunc
	done chan struct{} // closed when it has ended, and its queue pair is gone
}

// ended reports whether a peer has ended.
func (p *peer) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

type dialer = func(context.Context) (*net.UnixConn, error)

func (s Service) serve(ctx context.Context, dial dialer, log *slog.Logger) (err error) {
	dev, err := guestlib.Open(ctx, "unix:///service?function="+s.Function, guestlib.Options{
		Driver: "service " + s.Kind, Memory: memorySize, Connect: dial, NoRecovery: true,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	v := &life{kind: s.Kind, dev: dev, log: log}
	defer func() {
		cancel(nil)
		v.running.Wait()
		err = errors.Join(err, dev.Close())
	}()
	// It listens before it creates its queue pair, so whoever sees the queue pair can connect.
	l, err := dev.Listen(ctx, Number)
	if err != nil {
		return err
	}
	if err := v.prepare(ctx); err != nil {
		return err
	}
	log.Info("serving", "gid", dev.GID(), "number", Number, "datagram_qp", fmt.Sprintf("%#x", v.ud.qp.Num()))
	v.running.Go(func() {
		cancel(v.ud.run(ctx))
	})
	free := make(chan struct{}, connecting)
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		r, err := l.Accept(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		v.running.Go(func() {
			_, err := v.serve(ctx, guestlib.QPAddress{GID: r.GID, QPN: r.QPN}, func(ctx context.Context, e *end) error {
				return r.Accept(ctx, e.qp, v.welcome(nil, e.qp.Num()))
			})
			if err != nil {
				log.Info("peer not served", "peer", r.GID, "reason", err)
			}
			<-free
		})
	}
}

// prepare makes the region and the datagram queue pair.
func (v *life) prepare(ctx context.Context) (err error) {
	if v.pd, err = v.dev.AllocPD(ctx); err != nil {
		return err
	}
	access := uint32(guestlib.RemoteRead)
	switch v.kind {
	case config.ServiceMemory:
		access |= guestlib.LocalWrite | guestlib.RemoteWrite | guestlib.RemoteAtomic
	case config.ServiceEcho:
		access = 0
	}
	if access != 0 {
		buf, err := v.dev.Alloc(RegionSize)
		if err != nil {
			return err
		}
		if v.kind == config.ServicePattern {
			for i, b := 0, buf.Bytes(); i < len(b); i++ {
				b[i] = Pattern(i)
			}
		}
		if v.mr, err = v.pd.RegMR(ctx, buf, access); err != nil {
			return err
		}
	}
	v.ud, err = v.newEnd(ctx, guestlib.QPConfig{Type: guestlib.UD, QKey: QKey})
	return err
}

// welcome appends what a peer with a queue pair is told.
func (v *life) welcome(b []byte, qpn uint32) []byte {
	w := Welcome{Datagram: v.ud.qp.Num(), QKey: QKey, QPN: qpn}
	if v.mr != nil {
		w.Addr, w.RKey, w.Length = v.mr.Addr(), v.mr.RKey(), uint32(v.mr.Len())
	}
	return w.Append(b)
}

// serve makes a queue pair for a peer, has connect connect it, and serves it until it goes down. It
// replaces one that was made for the same queue pair of the peer: numbers are used again. Nobody else
// waits for the peer meanwhile.
func (v *life) serve(ctx context.Context, at guestlib.QPAddress, connect func(context.Context, *end) error) (*end, error) {
	p := &peer{at: at, done: make(chan struct{})}
	ctx, p.stop = context.WithCancel(ctx)
	if before := v.enter(p); before != nil {
		before.stop()
		<-before.done
	}
	e, err := v.newEnd(ctx, guestlib.QPConfig{Access: guestlib.RemoteRead | guestlib.RemoteWrite | guestlib.RemoteAtomic})
	if err == nil {
		soon, cancel := context.WithTimeout(ctx, connectTime)
		if err = connect(soon, e); err != nil {
			err = errors.Join(err, e.close(context.WithoutCancel(ctx)))
		}
		cancel()
	}
	if err != nil {
		p.stop()
		close(p.done)
		return nil, err
	}
	v.running.Go(func() {
		defer close(p.done)
		defer p.stop()
		_ = e.run(ctx)
		select { // a peer whose request was refused is still to be told of that
		case <-time.After(linger):
		case <-ctx.Done():
		}
		_ = e.close(context.WithoutCancel(ctx))
	})
	return e, nil
}

// enter lists a peer, and returns the one that gives way to it, or nil.
func (v *life) enter(p *peer) (before *peer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.peers = slices.DeleteFunc(v.peers, (*peer).ended)
	i := slices.IndexFunc(v.peers, func(q *peer) bool { return q.at == p.at })
	if i < 0 && len(v.peers) == maxPeers {
		i = 0
	}
	if i >= 0 {
		before = v.peers[i]
		v.peers = slices.Delete(v.peers, i, i+1)
	}
	v.peers = append(v.peers, p)
	return before
}
