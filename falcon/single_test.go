package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// single is one engine whose peer is the test, packet by packet.
type single struct {
	t   *testing.T
	now falcon.Time
	e   *falcon.Engine
	c   *falcon.Conn
	ulp *sim.ULP
	buf [8192]byte
}

func newSingle(t *testing.T, profile falcon.Profile, edit ...func(*falcon.ConnConfig)) *single {
	t.Helper()
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.e = falcon.NewEngine(falcon.Config{Profile: profile}, s.ulp)
	cfg := connConfig(true)
	for _, f := range edit {
		f(&cfg)
	}
	var err error
	if s.c, err = s.e.Open(s.now, cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// header returns the header of a packet to the engine, with bases that acknowledge nothing new.
func (s *single) header(typ wire.PacketType, psn, rsn uint32, ar bool) wire.Header {
	cfg := s.c.Config()
	return wire.Header{
		CID: cfg.LocalCID, Function: cfg.LocalFunction, Protocol: cfg.Protocol, Type: typ, AckReq: ar,
		DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN, PSN: psn, RSN: rsn,
	}
}

// receive gives a packet to the engine and its events to the ULP.
func (s *single) receive(b []byte) wire.Drop {
	d := s.e.Receive(s.now, falcon.Packet{T1: falcon.FalconTime(s.now - 5*us), Data: b})
	s.drain()
	return d
}

func (s *single) drain() {
	var ev falcon.Event
	for s.e.Next(&ev) {
		s.ulp.HandleEvent(s.now, &ev)
	}
}

func (s *single) pushData(psn, rsn uint32, ar bool) wire.Drop {
	p := wire.PushData{Header: s.header(wire.TypePushData, psn, rsn, ar), RequestLength: 32}
	b := p.Append(nil)
	payload := make([]byte, 32)
	sim.WritePayload(payload, uint64(rsn))
	return s.receive(append(b, payload...))
}

func (s *single) pullRequest(psn, rsn uint32, ar bool) wire.Drop {
	p := wire.PullRequest{Header: s.header(wire.TypePullRequest, psn, rsn, ar), RequestLength: 64}
	b := p.Append(nil)
	payload := make([]byte, 44)
	sim.WritePayload(payload, uint64(rsn))
	return s.receive(append(b, payload...))
}

func (s *single) pullData(psn, rsn uint32, length int) wire.Drop {
	h := s.header(wire.TypePullData, psn, rsn, false)
	payload := make([]byte, length)
	sim.WritePayload(payload, uint64(rsn))
	return s.receive(append(h.Append(nil), payload...))
}

func (s *single) resync(psn, rsn uint32, original wire.PacketType) wire.Drop {
	r := wire.Resync{Header: s.header(wire.TypeResync, psn, rsn, false), Code: wire.ResyncCIE, Original: original}
	return s.receive(r.Append(nil))
}

// ack gives an acknowledgement; unset bases acknowledge nothing new, and a packet of 10 µs ago is
// the last received.
func (s *single) ack(a wire.Ack) wire.Drop {
	cfg := s.c.Config()
	a.CID = cfg.LocalCID
	if a.DataBase == 0 {
		a.DataBase = cfg.TxDataPSN
	}
	if a.ReqBase == 0 {
		a.ReqBase = cfg.TxReqPSN
	}
	if a.T1 == 0 {
		a.T1, a.T2 = falcon.FalconTime(s.now-10*us), falcon.FalconTime(s.now-5*us)
	}
	return s.receive(a.Append(nil))
}

func (s *single) nack(n wire.Nack) wire.Drop {
	cfg := s.c.Config()
	n.CID, n.DataBase, n.ReqBase = cfg.LocalCID, cfg.TxDataPSN, cfg.TxReqPSN
	n.T1, n.T2 = falcon.FalconTime(s.now-10*us), falcon.FalconTime(s.now-5*us)
	return s.receive(n.Append(nil))
}

// transmit returns everything the engine sends now.
func (s *single) transmit() (out []sim.Sent) {
	for {
		n, _ := s.e.Transmit(s.now, s.buf[:])
		if n == 0 {
			return out
		}
		typ, _ := wire.Peek(s.buf[:n])
		out = append(out, sim.Sent{At: s.now, Type: typ, Packet: append([]byte(nil), s.buf[:n]...)})
	}
}

// advance lets time pass and returns everything sent meanwhile, each at its exact time.
func (s *single) advance(d falcon.Time) (out []sim.Sent) {
	end := s.now + d
	for {
		out = append(out, s.transmit()...)
		at := s.e.Deadline()
		if at > end {
			s.now = end
			s.e.Advance(s.now)
			s.drain()
			return append(out, s.transmit()...)
		}
		s.now = max(s.now, at)
		s.e.Advance(s.now)
		s.drain()
	}
}

func (s *single) push(n int) {
	s.t.Helper()
	for i := range n {
		if err := s.c.Push(s.now, uint64(i), 32); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *single) pull(n int) {
	s.t.Helper()
	for i := range n {
		if err := s.c.Pull(s.now, uint64(i), 44, 64); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *single) count(kind falcon.EventKind) (n int) {
	for _, e := range s.ulp.Events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (s *single) want(got, want wire.Drop) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("drop %q, want %q", got, want)
	}
}

// only returns the packets of a type.
func only(sent []sim.Sent, typ wire.PacketType) (out []sim.Sent) {
	for _, p := range sent {
		if p.Type == typ {
			out = append(out, p)
		}
	}
	return out
}

// psns of packets with a base header.
func psns(t *testing.T, sent []sim.Sent) (out []uint32) {
	t.Helper()
	for _, p := range sent {
		if p.Type.HasBase() {
			out = append(out, header(t, p.Packet).PSN)
		}
	}
	return out
}
