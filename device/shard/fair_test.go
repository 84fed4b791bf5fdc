package shard

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Work for a guest or a peer is charged to it before it is done (docs/design.md). Here a bystander,
// with RDMA and plain IP between two NICs, runs beside each possible attacker, and beside several
// at once, on shards that need time for their work (busy): it must keep its latency and its rate,
// and no Step may take long.

// Durations of work beside packets of the uplink, ns.
const (
	fairCommand  = 1500
	fairRequest  = 100 // of a doorbell, or a register access
	fairFrame    = 300 // to or from a port
	fairDelivery = 300 // into the memory of a queue pair
)

// mostOfStep is the longest time that a Step takes beside packets of the uplink: the sum of the
// budgets.
const mostOfStep = 100e3

// fair is the world of these tests. Each NIC has the bystander's VF 1 and the attacker's VF 2, of
// the same tenant, with drivers and ports. Their settings follow docs/functions.md for low latency:
// the bystander has a guarantee, and the attacker may have a few dozen packets in flight, since
// packets in flight are ahead of all others in the network.
type fair struct {
	*busy
	bystander, attacker [2]*driver
	floods              []func()              // of the attackers, called before each Step of NIC 1
	frames              [2]map[int][]fairPort // frames that wait in ports, by port
	spent               [2][2]int             // by NIC and port
	done                [2]uint64             // work in ns, until the last Step
	longest             falcon.Time

	sent, came []falcon.Time // times of the bystander's frames
}

type fairPort struct {
	frame []byte
	off   gateway.Offload
}

func newFair(t *testing.T) *fair {
	v := newRoCEWorld(t, config.TransportAuto, wire100us)
	for i := range v.nics {
		if err := v.function(i, 1).Credits.Guarantee(credit.Cost{credit.ReqPktTx: 8}); err != nil {
			t.Fatal(err)
		}
		few := v.function(i, 2).Credits.Limit()
		few[credit.ReqPktTx] = 48
		v.function(i, 2).Credits.SetLimit(few)
	}
	v.tell = false
	f := &fair{busy: &busy{virtual: v, wire: wire100us.Delay}}
	for i := range v.nics {
		f.frames[i] = map[int][]fairPort{}
		for _, s := range v.nics[i] {
			f.shards[i] = append(f.shards[i], busyShard{Shard: s})
		}
		f.bystander[i], f.attacker[i] = newDriver(v, i, 1), newDriver(v, i, 2)
		f.bystander[i].setUp()
		f.attacker[i].setUp()
	}
	f.bystander[0].connectTo(f.bystander[1], 1)
	return f
}

// begin makes the shards need time from now on.
func (f *fair) begin() {
	for i := range f.shards {
		f.done[i] = f.sum(i, fairWork)
		for k := range f.shards[i] {
			f.shards[i][k].freeAt = f.now
		}
	}
	f.fed, f.work = f.feed, f.worked
}

// fairWork returns the work of a shard so far, in ns.
func fairWork(s *Shard) uint64 {
	gw, rdma := s.plain.gw.Stats(), s.rdma.Stats()
	return gw.FromPorts*fairFrame + gw.FromPortBytes/8 + gw.ToPorts*fairFrame + gw.ToPortBytes/8 + gw.Local*fairFrame +
		s.guests.Commands*fairCommand + s.guests.Doorbells*fairRequest + (rdma.PushesRx+rdma.DatagramsLost+rdma.BadQKeys)*fairDelivery
}

func (f *fair) worked(nic int, s *Shard) falcon.Time {
	for _, out := range s.plain.gw.Output() {
		if nic == 1 && out.To == f.portAt(1, 0).Endpoint && bytes.Contains(bytes.Join(out.Parts, nil), []byte("of the bystander")) {
			f.came = append(f.came, f.now)
		}
	}
	s.plain.gw.Done()
	done := f.sum(nic, fairWork)
	took := falcon.Time(done - f.done[nic])
	f.done[nic] = done
	f.longest = max(f.longest, took)
	return took
}

// feed runs the attackers, and reads ports as device/ports does: in turns, by the cost of their
// frames.
func (f *fair) feed(nic int, s *Shard) bool {
	if nic == 0 {
		for _, flood := range f.floods {
			flood()
		}
	}
	ports := f.frames[nic]
	if s.plain.gw.Busy() || len(ports[0])+len(ports[1]) == 0 {
		return false
	}
	var in []gateway.PortInput
	had := &f.spent[nic]
	for n, spent := 0, 0; n < 64 && spent < 240_000 && len(ports[0])+len(ports[1]) > 0; n++ {
		p := 0
		if len(ports[0]) == 0 || len(ports[1]) > 0 && had[1] < had[0] {
			p = 1
		}
		x := ports[p][0]
		ports[p] = ports[p][1:]
		cost := max(len(x.frame), 240_000/64)
		if x.off.Size > 0 {
			cost = max(cost, (len(x.frame)/int(x.off.Size)+1)*240_000/96)
		}
		spent += cost
		had[p] += cost
		had[1-p] = max(had[1-p], had[p]-240_000/4) // a port that had nothing to send gets no more than a turn for it
		in = append(in, gateway.PortInput{From: f.portAt(nic, p).Endpoint, Frame: x.frame, Offload: x.off})
	}
	s.Ports().Take(in)
	return true
}

// put leaves a frame in a port, unless many wait.
func (f *fair) put(nic, port int, frame []byte, off gateway.Offload) bool {
	if len(f.frames[nic][port]) >= 256 {
		return false
	}
	f.frames[nic][port] = append(f.frames[nic][port], fairPort{frame, off})
	return true
}

// udp returns a frame of a port with n bytes.
func (f *fair) udp(nic, port int, dst [4]byte, text string, n int) []byte {
	f.say(nic, port, f.portAt(nic, port).Addresses[0].As4(), dst, n)
	in := f.ports[nic]
	b := in[len(in)-1].Frame
	f.ports[nic] = in[:len(in)-1]
	copy(b[42:], text)
	return b
}

// got is the bystander's result for RDMA or for plain IP: its latencies, in order, and how much
// came in time.
type got struct {
	took []falcon.Time
	rate int
}

func (g *got) add(took falcon.Time, inTime bool) {
	g.took = append(g.took, took)
	if inTime {
		g.rate++
	}
}

func (g *got) p99() float64 {
	slices.Sort(g.took)
	return float64(g.took[len(g.took)*99/100])
}

// measure makes the bystander write 4 KiB, and send a frame, at even intervals, and returns its
// results.
func (f *fair) measure(d falcon.Time) (rdma, plain got) {
	const every, patience = 199e3, 100e6
	var posted []falcon.Time
	f.came, f.sent, f.longest = nil, nil, 0
	end := f.now + d
	step := func(nic int, at falcon.Time) {
		for nic == 0 {
			cqe, ok := f.bystander[0].completion()
			if !ok {
				break
			}
			if cqe.Status != abi.WCSuccess {
				f.t.Fatalf("the bystander's WRITE: %s", cqe.Status)
			}
			rdma.add(at-posted[0], at < end)
			posted = posted[1:]
		}
	}
	for next := f.now; f.now < end; {
		f.run(min(next, end), step)
		if f.now >= next && f.now < end {
			if len(posted) < 16 {
				posted = append(posted, f.now)
				f.bystander[0].send(abi.OpWrite, 0, 4096, f.bystander[1], 0)
			}
			f.sent = append(f.sent, f.now)
			f.put(0, 0, f.udp(0, 0, [4]byte{192, 168, 100, 21}, "of the bystander", 1000), gateway.Offload{})
			next += every
		}
	}
	for f.now < end+patience && (len(posted) > 0 || len(f.came) < len(f.sent)) {
		f.run(f.now+1e6, step)
	}
	if len(posted) > 0 || len(f.came) < len(f.sent) {
		f.t.Fatalf("of the bystander %d WRITEs are not done, and %d of %d frames came", len(posted), len(f.came), len(f.sent))
	}
	for i, at := range f.came {
		plain.add(at-f.sent[i], at < end)
	}
	return rdma, plain
}

// attacks has the attacks of guests and peers, each with its setup; the function that this returns
// floods.
var attacks = map[string]func(f *fair, a, b *driver) func(){
	"admin commands": func(_ *fair, a, _ *driver) func() {
		return func() {
			for _, ok := a.answered(); ok; _, ok = a.answered() {
			}
			for range 15 {
				if !a.tryPost(abi.AdminOpQueryQP, &abi.QueryQP{QPN: a.qpn}) {
					return
				}
			}
		}
	},
	"registers": func(_ *fair, a, _ *driver) func() {
		return func() {
			for range 200 {
				a.ch.Ask(guest.Request{Kind: guest.RegRead, Tag: 1, Offset: abi.RegFault, Width: 4})
			}
			a.ch.Replies()
		}
	},
	"doorbells": func(_ *fair, a, _ *driver) func() {
		return func() {
			for q := range uint32(200) {
				a.ring(abi.DoorbellRQ, a.qpn+q%64, 0)
			}
		}
	},
	"small WRITEs": writes(abi.OpWrite, 64), "large WRITEs": writes(abi.OpWrite, 64<<10), "READs": writes(abi.OpRead, 64<<10),
	"SENDs without receives": writes(abi.OpSend, 64),
	"datagrams to a group": func(_ *fair, a, b *driver) func() {
		ahn := a.createUD(theGroup, 0, 1)
		own := a.qpn
		for range 60 {
			a.qpn = 0
			a.createUD(theGroup, 0, 1)
			a.join(theGroup)
		}
		a.qpn = own
		b.createUD(theGroup, 0, 1)
		b.join(theGroup)
		return func() {
			for {
				if _, ok := a.completion(); !ok {
					break
				}
			}
			for a.room() {
				a.datagram(ahn, abi.GroupQPN, 1000)
			}
		}
	},
	"small frames to a peer": frames(func(f *fair) []byte { return f.udp(0, 1, [4]byte{192, 168, 100, 22}, "", 18) }, gateway.Offload{}),
	"frames that are crumbs": frames(func(f *fair) []byte { return f.udp(0, 1, [4]byte{192, 168, 100, 22}, "", 40_000) },
		gateway.Offload{GSO: gateway.GSOUDP, NeedsCsum: true, Size: 400, CsumStart: 34, CsumOffset: 6}),
	"frames to a port here": frames(func(f *fair) []byte { return f.udp(0, 1, [4]byte{192, 168, 100, 11}, "", 1400) }, gateway.Offload{}),
	"frames to nobody":      frames(func(f *fair) []byte { return f.udp(0, 1, [4]byte{192, 168, 100, 99}, "", 18) }, gateway.Offload{}),
	"frames of the peer's guest": func(f *fair, _, _ *driver) func() {
		b := f.udp(1, 1, [4]byte{192, 168, 100, 12}, "", 18)
		return func() {
			for f.put(1, 1, bytes.Clone(b), gateway.Offload{}) {
			}
		}
	},
	"connection requests": func(_ *fair, a, b *driver) func() {
		return func() {
			for _, ok := a.answered(); ok; _, ok = a.answered() {
			}
			for a.tryPost(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 4711, DGID: b.fn.GID()}) {
			}
			a.ch.Async()
		}
	},
	"resets": func(_ *fair, a, _ *driver) func() {
		return func() {
			for _, value := range []abi.Control{abi.ControlReset, abi.ControlEnable} {
				a.put(abi.RegControl, 4, uint64(value))
			}
			a.ch.Replies()
			a.ch.Async()
		}
	},
}

// writes keeps as many requests in a queue as it has room for.
func writes(op abi.Opcode, n int) func(f *fair, a, b *driver) func() {
	return func(_ *fair, a, b *driver) func() {
		a.connectTo(b, 2)
		return func() {
			for {
				if _, ok := a.completion(); !ok {
					break
				}
			}
			for a.room() {
				a.send(op, 0, n, b, 0)
			}
		}
	}
}

// frames keeps the attacker's port full of one frame.
func frames(of func(f *fair) []byte, off gateway.Offload) func(f *fair, a, b *driver) func() {
	return func(f *fair, _, _ *driver) func() {
		b := of(f)
		return func() {
			for f.put(0, 1, bytes.Clone(b), off) {
			}
		}
	}
}

// room reports whether the driver's send queue has room for one more.
func (d *driver) room() bool {
	n, err := d.sendQ.Free()
	return err == nil && n > 0
}

// tryPost is post if there is room.
func (d *driver) tryPost(op abi.AdminOp, params marshaler) bool {
	if n, err := d.sq.Free(); err != nil || n == 0 {
		return false
	}
	d.post(op, params)
	return true
}

// TestBystanderOfAnyAttackerKeepsItsShare checks that a bystander beside any attacker keeps its p99
// within four times that of the bystander alone (four times for each if there are several), and
// four fifths of its rate; and that no Step takes longer than the budgets allow. Its connection and
// its port are the attacker's neighbours on both NICs.
func TestBystanderOfAnyAttackerKeepsItsShare(t *testing.T) {
	names := make([][]string, 0, len(attacks)+3)
	for name := range attacks {
		names = append(names, []string{name})
	}
	slices.SortFunc(names, slices.Compare)
	names = append(names,
		[]string{"admin commands", "small WRITEs", "frames that are crumbs"},
		[]string{"datagrams to a group", "doorbells", "small frames to a peer"},
		[]string{"registers", "SENDs without receives", "frames to a port here"},
	)
	for _, list := range names {
		t.Run(strings.Join(list, " and "), func(t *testing.T) {
			f := newFair(t)
			var floods []func()
			for _, name := range list {
				floods = append(floods, attacks[name](f, f.attacker[0], f.attacker[1]))
			}
			f.begin()
			const d = 20e6
			idle, idlePlain := f.measure(d)
			f.floods = floods
			busy, busyPlain := f.measure(d)
			text := fmt.Sprintf("RDMA p99 %.1f times, rate %.2f; plain IP %.1f times, %.2f; longest Step %d µs", busy.p99()/idle.p99(),
				float64(busy.rate)/float64(idle.rate), busyPlain.p99()/idlePlain.p99(), float64(busyPlain.rate)/float64(idlePlain.rate), f.longest/1000)
			t.Log(text)
			times := float64(4 * len(list))
			if busy.p99() > times*idle.p99() || busyPlain.p99() > times*idlePlain.p99() || busy.rate*10 < idle.rate*8 || busyPlain.rate*10 < idlePlain.rate*8 || f.longest > mostOfStep {
				t.Error(text)
			}
		})
	}
}

// FuzzWork checks the same for any two attackers, one of them at the port, at any times: the
// bystander's data arrives, and no Step takes longer than the budgets allow.
func FuzzWork(f *testing.F) {
	names := slices.Sorted(maps.Keys(attacks))
	atPort := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.Contains(name, "frames") })
	f.Add([]byte{0, 1, 0xff})
	f.Add([]byte{4, 2, 0x35, 0x81})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 3 {
			return
		}
		x := newFair(t)
		var floods []func()
		for _, name := range []string{names[int(in[0])%len(names)], atPort[int(in[1])%len(atPort)]} {
			floods = append(floods, attacks[name](x, x.attacker[0], x.attacker[1]))
		}
		turn, when := 0, in[2:]
		x.floods = []func(){func() {
			i := turn % (4 * len(when))
			turn++
			for k, flood := range floods {
				if when[i/4]>>(i%4*2+k)&1 != 0 {
					flood()
				}
			}
		}}
		x.begin()
		if x.measure(3e6); x.longest > mostOfStep {
			t.Errorf("a Step of %d µs", x.longest/1000)
		}
	})
}
