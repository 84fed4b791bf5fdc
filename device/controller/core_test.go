package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// side is a fake shard that records its orders.
type side struct {
	told   []string
	names  map[cm.PeerID]string
	probes []string
	refuse error // returned by Set
	is     bool  // returned by Reset
}

func (s *side) say(format string, args ...any)                { s.told = append(s.told, fmt.Sprintf(format, args...)) }
func (s *side) Answer(vtime.Time, *conn.Answer)               { s.say("answer") }
func (s *side) Decide(vtime.Time, *conn.Decision)             { s.say("decide") }
func (s *side) TakeKey(_ vtime.Time, u security.Use, _ cm.SA) { s.say("key of %s", s.names[u.Peer]) }

func (s *side) ForgetKeys(peer cm.PeerID) { s.say("forget keys of %s", s.names[peer]) }

func (s *side) PeerPorts(_ vtime.Time, peer cm.PeerID)  { s.say("ports of %s", s.names[peer]) }
func (s *side) Resolve(_ vtime.Time, to netip.AddrPort) { s.say("resolve %s", to.Addr()) }
func (s *side) ProbePath(_ vtime.Time, peer cm.PeerID, _ netip.AddrPort, tenant uint32, p pathmtu.Probe) {
	s.probes = append(s.probes, fmt.Sprintf("%d bytes to %s in tenant %d", p.Size, s.names[peer], tenant))
}

func (s *side) SetPeer(peer cm.PeerID, name string, underlay netip.AddrPort, _ bool) {
	s.names[peer] = name
	s.say("peer %s at %s", name, underlay.Addr())
}

func (s *side) RemovePeer(peer cm.PeerID) {
	s.say("no peer %s", s.names[peer])
	delete(s.names, peer)
}

func (s *side) LimitPath(peer cm.PeerID, data int) { s.say("%d bytes to %s", data, s.names[peer]) }

func (s *side) VF(_ vtime.Time, id pfvf.ID) abi.VFHandler     { s.say("look at %s", id); return nil }
func (s *side) Reset(_ vtime.Time, id pfvf.ID) bool           { s.say("reset %s", id); return s.is }
func (s *side) ResetVFs(_ vtime.Time, pf pfvf.ID)             { s.say("reset VFs of %s", pf) }
func (s *side) VFsEnabled(pf pfvf.ID, n int)                  { s.say("%d VFs of %s", n, pf) }
func (s *side) PFLink(_ vtime.Time, pf pfvf.ID, is pfvf.Link) { s.say("link of %s %s", pf, is) }

func (s *side) Set(_ vtime.Time, id pfvf.ID, is *config.Function) error {
	s.say("set %s weight %d", id, is.Weight)
	return s.refuse
}

// nic is a core with two shards that record their orders. Odd VFs belong to the second.
type nic struct {
	*Core
	t       *testing.T
	sides   []*side
	shardOf func(fn uint32) int
	now     vtime.Time
	out     CoreOutput
	log     []string
}

func newNIC(t *testing.T, change ...func(*config.Config)) *nic {
	t.Helper()
	n := &nic{t: t, now: 1e9, shardOf: func(fn uint32) int { return int(fn & 1) }}
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	for _, f := range change {
		f(cfg)
	}
	var err error
	n.Core, err = NewCore(CoreConfig{
		NIC: cfg, Shards: 2, Rand: devicetest.Seeded(1), ShardOf: func(fn uint32) int { return n.shardOf(fn) },
		Log: func(_ vtime.Time, _ slog.Level, msg string, args ...any) {
			n.log = append(n.log, strings.TrimSuffix(fmt.Sprintln(append([]any{msg}, args...)...), "\n"))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		s := &side{is: true, names: map[cm.PeerID]string{}}
		n.sides = append(n.sides, s)
		n.ShardLink(i).Serve(func(list []Order) {
			for _, o := range list {
				o(s, n.now)
			}
			n.ShardLink(i).Flush()
		})
	}
	n.told()
	return n
}

// told steps the core until it is idle, and returns the orders that each shard got.
func (n *nic) told() (list [2]string) {
	n.t.Helper()
	for range 4 {
		n.Step(n.now, &n.out)
	}
	for i, s := range n.sides {
		list[i] = strings.Join(s.told, ", ")
		s.told = nil
	}
	return list
}

// mail returns the mailbox of a peer.
func (n *nic) mail(host cm.HostID) *PeerMail { return n.Peers.Find(fmt.Sprint(host)).Mail }

// id returns the ID of a peer.
func (n *nic) id(host cm.HostID) cm.PeerID { return n.Peers.Find(fmt.Sprint(host)).ID }

// vf returns the ID of VF n of the first PF.
func vf(n int) pfvf.ID { return pfvf.ID(1<<16 | n) }

// TestAPeersKeyGoesToTheShardItNames checks that a peer's key goes to the shard that the peer
// names, and is dropped if there is no such shard.
func TestAPeersKeyGoesToTheShardItNames(t *testing.T) {
	n := newNIC(t)
	for shard, want := range map[uint8][2]string{0: {"key of 2", ""}, 1: {"", "key of 2"}, 2: {}, 255: {}} {
		peerKeys{n.Core}.HandleKeys(n.now, &cm.Output{Kind: cm.OutRekey, Use: cm.Use{Peer: n.id(2), Tenant: 7, Shard: shard}})
		if told := n.told(); told != want {
			t.Errorf("shard %d: told %q", shard, told)
		}
	}
}

// TestAnAddressIsResolvedOncePerStep checks that shards are told of an address once per Step.
func TestAnAddressIsResolvedOncePerStep(t *testing.T) {
	n := newNIC(t)
	for _, a := range []string{"10.99.0.2", "10.99.0.3", "10.99.0.2"} {
		n.Resolve(n.now, netip.AddrPortFrom(netip.MustParseAddr(a), 1000))
	}
	both := "resolve 10.99.0.2, resolve 10.99.0.3"
	if told := n.told(); told != [2]string{both, both} {
		t.Errorf("told %q", told)
	}
}

// TestKeysAreNeededForReachablePeers checks that keys are needed for peers that can be told of
// them, and gateway keys also for peers that have ports to send from.
func TestKeysAreNeededForReachablePeers(t *testing.T) {
	n := newNIC(t)
	use := func(peer cm.PeerID, tenant uint32, class cm.Class) security.Use {
		return security.Use{Peer: peer, Tenant: tenant, Class: class}
	}
	needed := func(u security.Use, want bool) {
		t.Helper()
		if n.keyNeeded(u) != want {
			t.Errorf("%+v: needed %v", u, !want)
		}
	}
	needed(use(2, 7, cm.ClassGateway), false)
	n.plain.routes.Learn(2, []gateway.Address{{Tenant: 7, Addr: netip.MustParseAddr("192.168.100.21"), MTU: 1400}})
	needed(use(2, 7, cm.ClassGateway), true)
	needed(use(2, 8, cm.ClassGateway), false)
	needed(use(2, 7, cm.ClassFalcon), false)
}

// TestAStoppedCoreRefusesCalls checks that callers of a stopped core, and those that wait for an
// answer, get an error.
func TestAStoppedCoreRefusesCalls(t *testing.T) {
	n := newNIC(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(func() int64 { return n.now }, notes{})
	}()
	if err := n.ask(func(then func(error)) { then(nil) }); err != nil {
		t.Error(err)
	}
	refused := errors.New("no")
	if err := n.ask(func(then func(error)) { then(refused) }); !errors.Is(err, refused) {
		t.Error(err)
	}
	waits := make(chan error)
	begun := make(chan struct{})
	go func() { waits <- n.ask(func(func(error)) { close(begun) }) }()
	<-begun
	n.Halt()
	<-done
	n.Stop()
	if err := <-waits; !errors.Is(err, inbox.ErrStopped) {
		t.Error(err)
	}
	if err := n.Do(func(vtime.Time) { t.Error("ran") }); !errors.Is(err, inbox.ErrStopped) {
		t.Error(err)
	}
}
