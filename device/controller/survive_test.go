package controller

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// stranger sends messages over a link in the name of another NIC.
type stranger struct {
	n        *nic
	host     cm.HostID
	mail     *PeerMail
	instance uint64 // instance number of the NIC, from its last Hello
	ids      uint32
}

const (
	service = 9
	secret  = "a key of 16 byte"
)

// newListener returns a NIC with the peers 2 and 3, whose first VF listens.
func newListener(t *testing.T) *nic {
	n := newNIC(t, func(c *config.Config) {
		other := c.Peers[0]
		other.Host, other.Underlay = 3, netip.MustParseAddr("10.99.0.3")
		c.Peers = append(c.Peers, other)
	})
	line := n.Line(1)
	for _, r := range []conn.Request{{Kind: conn.Begin, Epoch: 1}, {Kind: conn.Quota, N: 8}, {Kind: conn.Listen, Service: service}} {
		r.Function = uint32(vf(1))
		line.Ask(r)
	}
	line.Flush()
	n.told()
	return n
}

func meet(n *nic, host cm.HostID) *stranger {
	s := &stranger{n: n, host: host, mail: n.PeerMail(host), ids: uint32(host) << 8}
	s.greet()
	return s
}

func (s *stranger) gid() [16]byte { return netip.AddrFrom4([4]byte{192, 168, s.host, 1}).As16() }

// says sends a message, and returns the NIC's answers.
func (s *stranger) says(msg []byte) (answers [][]byte) {
	s.mail.Message(msg)
	return s.hears()
}

func (s *stranger) hears() (list [][]byte) {
	s.n.Step(s.n.now, &s.n.out)
	for _, m := range s.n.out.Messages {
		if m.Host == s.host {
			list = append(list, m.Data)
		}
	}
	return list
}

// greet starts a link.
func (s *stranger) greet() {
	s.n.t.Helper()
	s.mail.Up()
	list := s.hears()
	if len(list) == 0 {
		s.n.t.Fatalf("host %d is not greeted", s.host)
	}
	h, err := cm.ParseHello(list[0])
	if err != nil {
		s.n.t.Fatal(err)
	}
	s.instance = h.Instance
	s.says(s.hello(1))
}

func (s *stranger) hello(instance uint64) []byte {
	h := cm.Hello{Host: s.host, Instance: instance, Endpoints: []cm.Endpoint{{Tenant: 7, GID: s.gid(), Function: uint32(s.host)<<16 | 1}}}
	return h.Append(nil)
}

func (s *stranger) request() []byte {
	s.ids++
	q := cm.REQ{
		SenderID: s.ids, Service: service, Tenant: 7, Function: uint32(s.host)<<16 | 1, PeerFunction: uint32(vf(1)), SGID: s.gid(),
		DGID: netip.MustParseAddr("192.168.100.11").As16(), QPN: 5,
		Offer: cm.Offer{Shard: 1, CID: s.ids, MTU: 1500, Ordered: true, SA: cm.SA{SPI: 77, Key: []byte(secret)}},
	}
	return q.Append(nil)
}

// connects makes a connection to the NIC's first VF.
func (s *stranger) connects() {
	s.n.t.Helper()
	s.says(s.request())
	list := s.connections(cm.StateReqReceived)
	if len(list) != 1 {
		s.n.t.Fatalf("host %d: %d requests, want one", s.host, len(list))
	}
	line := s.n.Line(1)
	line.Ask(conn.Request{Kind: conn.Accept, Function: uint32(vf(1)), ID: list[0].ID, N: 6})
	line.Flush()
	for _, m := range s.hears() {
		if rep, err := cm.ParseREP(m); err == nil {
			rtu := cm.RTU{SenderID: s.ids, ReceiverID: rep.SenderID}
			s.says(rtu.Append(nil))
		}
	}
	if len(s.connections(cm.StateEstablished)) == 0 {
		s.n.t.Fatalf("host %d is not connected", s.host)
	}
}

func (s *stranger) connections(in cm.State) (list []control.Connection) {
	for _, c := range s.n.Connections(s.n.now) {
		if c.PeerHost == s.host && c.State == in.String() {
			list = append(list, c)
		}
	}
	return list
}

func (s *stranger) up() bool {
	for _, p := range s.n.Peers() {
		if p.Host == s.host {
			return p.Up
		}
	}
	return false
}

// failOnce makes the next order for a function panic.
func (n *nic) failOnce() {
	home := n.home
	n.home = func(uint32) int { n.home = home; panic("no home") }
}

// TestPeersMessagesEndNoNIC checks that a message that makes its handling, or what follows from it,
// panic ends its peer's link, keys and connections, even if ending them panics too. Other peers
// keep theirs, and the NIC goes on. The peer comes back to a NIC of another instance. No message is
// known that causes a panic, so the test breaks the core's state.
func TestPeersMessagesEndNoNIC(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(s *stranger) (message []byte, mend func())
		typ    string
		faults uint64
	}{
		{"what follows", func(s *stranger) ([]byte, func()) {
			s.n.failOnce()
			return s.request(), func() {}
		}, "REQ", 1},
		{"the handler, and the end", func(s *stranger) ([]byte, func()) {
			s.mail.Down()
			s.greet()
			s.mail.Down() // it restarts
			s.mail.Up()
			s.hears()
			keys := s.n.Keys
			s.n.Keys = nil
			return s.hello(2), func() { s.n.Keys = keys }
		}, "Hello", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newListener(t)
			bad, good := meet(n, 2), meet(n, 3)
			bad.connects()
			good.connects()
			met := bad.instance

			message, mend := c.breaks(bad)
			bad.mail.Message(message)
			bad.mail.Message(bad.request()) // queued behind the bad message
			bad.mail.Drain(n.Core, n.now)
			mend()
			bad.hears()
			if bad.up() || !slices.Equal(n.out.Ends, []cm.HostID{2}) {
				t.Errorf("the peer is there: %t, links that end: %v", bad.up(), n.out.Ends)
			}
			bad.hears()
			if len(n.out.Ends) > 0 {
				t.Errorf("a new link ends as well: %v", n.out.Ends)
			}
			counted := control.Counters{}
			n.count(counted)
			if counted["drop.peer_panic"] != c.faults {
				t.Errorf("%d faults are counted, want %d", counted["drop.peer_panic"], c.faults)
			}
			log := strings.Join(n.log, "\n")
			if n := strings.Count(log, "fault in the program"); n != int(c.faults) || !strings.Contains(log, "peer 2 message "+c.typ) {
				t.Errorf("%d faults in the log:\n%s", n, log)
			}
			if strings.Contains(log, secret) || strings.Contains(log, hex.EncodeToString([]byte(secret))) {
				t.Errorf("the log has the peer's key:\n%s", log)
			}
			if !good.up() || len(good.connections(cm.StateEstablished)) != 1 {
				t.Error("another peer has lost its connection")
			}
			good.connects()

			bad.mail.Down()
			bad.greet()
			if bad.instance == met {
				t.Error("the peer is not told that the NIC has forgotten it")
			}
			if left := bad.connections(cm.StateEstablished); len(left) > 0 {
				t.Errorf("%d connections are left", len(left))
			}
			bad.connects()
			if !good.up() || len(good.connections(cm.StateEstablished)) != 2 {
				t.Error("another peer has suffered")
			}
		})
	}
}

// TestRunEndsLinks checks that the link of a peer ends when handling its message panicked.
func TestRunEndsLinks(t *testing.T) {
	n := newListener(t)
	bad := meet(n, 2)
	n.failOnce()
	done, ended := make(chan struct{}), make(chan uint8, 1)
	go func() {
		defer close(done)
		n.Run(func() int64 { return n.now }, func(uint8, []byte) {}, func(host uint8, reason error) {
			if !errors.Is(reason, errFault) {
				t.Error(reason)
			}
			ended <- host
		})
	}()
	bad.mail.Message(bad.request())
	if host := <-ended; host != 2 {
		t.Errorf("the link to host %d ends", host)
	}
	n.Halt()
	<-done
}
