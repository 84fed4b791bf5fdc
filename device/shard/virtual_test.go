package shard

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/guest/inprocess"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// virtual is two NICs in virtual time: no threads, no sockets, no clock. The uplinks are joined by
// impaired links, the connection managers by a queue with a fixed delay. Everything is determined
// by the seed.
//
//	driver 0 ▶ mailbox ▶ shards 0 ▶ link ▶ shards 1 ◀ mailbox ◀ driver 1
//	                       ▲ ▼             ▲ ▼
//	                      core 0 ─ cm ─ core 1
//
// A NIC with several shards gets each frame on the queue of a shard that the seed chooses: they
// hand most frames over.
type virtual struct {
	t        testing.TB
	now      falcon.Time
	shards   [2]*Shard   // of each NIC the shard that has VF 1
	nics     [2][]*Shard // all shards of each NIC
	cores    [2]*controller.Core
	names    [2]string
	outs     [2][]thread.Output
	queue    *rand.Rand // chooses queues
	decided  [2]controller.CoreOutput
	links    [2]*sim.Link            // by sender
	mail     [2][]cmMail             // by receiver
	peers    [2]*controller.PeerMail // nil: the NIC does not have the other as a peer
	link     uint32                  // number of the managers' link; a message of an earlier one is lost
	trace    hash.Hash64
	tap      func(from int, frame []byte) []byte // changes or drops (nil) a frame
	gap      func(nic int)                       // called between a shard's last Step and Flush
	frames   [][]byte
	segments []int
	tell     bool                   // keep a trace
	ports    [2][]gateway.PortInput // frames for the shards from their ports
	arrived  [2][][]byte            // frames for the ports
	super    *joiner                // sends consecutive frames as superframes; nil: one by one
}

type cmMail struct {
	at   falcon.Time
	link uint32
	msg  []byte // nil: the link is up or down
	up   bool
}

const cmDelay = 200_000 // ns

func newVirtual(t testing.TB, seed uint64, imp sim.Impairment) *virtual {
	t.Helper()
	return newVirtualWith(t, seed, imp, func(int, *config.Config) {})
}

// newVirtualWith lets the caller change the configurations.
func newVirtualWith(t testing.TB, seed uint64, imp sim.Impairment, change func(i int, c *config.Config)) *virtual {
	t.Helper()
	v := &virtual{t: t, now: 1_000_000_000, trace: fnv.New64a(), tell: true, queue: rand.New(rand.NewPCG(seed, 9))}
	for i := range v.shards {
		cfg := devicetest.Config(t, i+1, fmt.Sprintf("/nowhere/%d", i), [2]string{"127.0.0.1:1", "127.0.0.1:2"})
		cfg.NIC.Shards = perNIC
		change(i, cfg)
		if overRoCE {
			speakRoCE(cfg)
		}
		v.cores[i], v.nics[i] = newNIC(t, cfg, seed*2+uint64(i))
		v.shards[i], v.outs[i] = v.nics[i][cfg.ShardOf()(0, 1)], make([]thread.Output, len(v.nics[i]))
		v.links[i] = sim.NewLink(seed*7+uint64(i), imp)
		v.names[i] = cfg.CM.Name
		v.peers[i] = v.cores[i].Peers.Find(cfg.Peers[0].Name).Mail
		v.peers[i].Up()
	}
	v.idle(5 * cmDelay) // the managers greet each other
	if overRoCE {
		v.until("keys for the tunnels", func() bool { return v.keyless() == 0 })
		v.idle(5 * cmDelay) // and the routes
	}
	return v
}

// peer returns the ID that a NIC has for the other.
func (v *virtual) peer(nic int) cm.PeerID { return v.cores[nic].Peers.Find(v.names[1-nic]).ID }

// hear gives a NIC's core what has arrived by the managers' link.
func (v *virtual) hear(i int) {
	for len(v.mail[i]) > 0 && v.mail[i][0].at <= v.now {
		m := v.mail[i][0]
		v.mail[i] = v.mail[i][1:]
		switch p := v.peers[i]; {
		case p == nil:
		case m.msg == nil && m.up:
			p.Up()
		case m.msg == nil:
			p.Down()
		case m.link == v.link:
			p.Message(m.msg)
		}
	}
}

// relink makes and ends the managers' link as NICs add and remove each other.
func (v *virtual) relink(i int, c *controller.LinkChange) {
	switch {
	case c.Gone:
		v.peers[i] = nil
		v.mail[1-i] = append(v.mail[1-i], cmMail{at: v.now + cmDelay})
	case v.peers[i] == nil:
		v.peers[i] = c.Mail
		if v.peers[1-i] != nil {
			v.link++
			c.Mail.Up()
			v.mail[1-i] = append(v.mail[1-i], cmMail{at: v.now + cmDelay, up: true})
		}
	}
}

// together assigns all VFs of a NIC to one shard, the last.
func together(_ int, c *config.Config) {
	last := c.NIC.Shards - 1
	for i := range c.Functions[0].VFs {
		c.Functions[0].VFs[i].Shard = &last
	}
}

// perNIC is the number of shards of NICs in virtual time, if a test does not set it.
var perNIC = 1

func init() {
	flag.IntVar(&perNIC, "shards", 1, "give NICs in virtual time so many shards")
}

// eachShards runs a test with one shard for each NIC, and with several.
func eachShards(t *testing.T, test func(t *testing.T)) {
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprintf("%d shards", n), func(t *testing.T) {
			defer func(before int) { perNIC = before }(perNIC)
			perNIC = n
			test(t)
		})
	}
}

// newNIC returns a NIC's core and its shards.
func newNIC(t testing.TB, cfg *config.Config, seed uint64) (*controller.Core, []*Shard) {
	t.Helper()
	var shards []*Shard
	shardOf := cfg.ShardOf()
	core, err := controller.NewCore(controller.CoreConfig{
		NIC: cfg, Shards: cfg.NIC.Shards, Rand: devicetest.Seeded(seed),
		ShardOf: func(fn uint32) int { return shardOf(pfvf.ID(fn).PF(), pfvf.ID(fn).VF()) },
		Log: func(now falcon.Time, level slog.Level, msg string, args ...any) {
			shards[0].log.Line(now, level, msg, args...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range cfg.NIC.Shards {
		s, err := New(i, cfg, core.ShardLink(i), tapeOf(t, i, cfg), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		core.ShardLink(i).Serve(inbox.NewMailbox(&s.inbox, 0, func(now falcon.Time, o *controller.Order) { (*o)(s.Orders(), now) }).Send)
		shards = append(shards, s)
	}
	Join(shards)
	return core, shards
}

// core returns the core of a shard's NIC.
func (v *virtual) core(s *Shard) *controller.Core {
	if slices.Contains(v.nics[1], s) {
		return v.cores[1]
	}
	return v.cores[0]
}

// out returns the last output of a shard.
func (v *virtual) out(s *Shard) *thread.Output {
	if slices.Contains(v.nics[1], s) {
		return &v.outs[1][s.index]
	}
	return &v.outs[0][s.index]
}

// sum adds up a value over all shards of a NIC.
func (v *virtual) sum(nic int, of func(s *Shard) uint64) (sum uint64) {
	for _, s := range v.nics[nic] {
		sum += of(s)
	}
	return sum
}

// dropped counts what all shards of a NIC dropped for a reason.
func (v *virtual) dropped(nic int, r dropReason) uint64 {
	return v.sum(nic, func(s *Shard) uint64 { return s.drops[r] })
}

// all visits the shards of both NICs, each with the number of its NIC.
func (v *virtual) all() iter.Seq2[int, *Shard] {
	return func(yield func(int, *Shard) bool) {
		for nic := range v.nics {
			for _, s := range v.nics[nic] {
				if !yield(nic, s) {
					return
				}
			}
		}
	}
}

// logTo makes all shards of a NIC log to w.
func (v *virtual) logTo(nic int, w io.Writer) {
	for _, s := range v.nics[nic] {
		s.log.To = slog.New(slog.NewTextHandler(w, nil))
	}
}

// captureTo makes all shards of a NIC write packets to a capture.
func (v *virtual) captureTo(nic int, c *capture.Capture, what string) {
	for _, s := range v.nics[nic] {
		s.View().Captures.setSinks([]capture.Sink{capture.NewSink(c, what)})
	}
}

// functions returns the functions of a NIC, shard by shard.
func (v *virtual) functions(nic int) (all []*member) {
	for _, s := range v.nics[nic] {
		all = slices.AppendSeq(all, s.funcs.members.all())
	}
	return all
}

// shardOf returns the shard that has a function.
func (v *virtual) shardOf(f *member) *Shard {
	for _, s := range v.all() {
		if s.funcs.members.get(f.ID) == f {
			return s
		}
	}
	return nil
}

// function returns a VF of a NIC, or its PF (0).
func (v *virtual) function(nic, vf int) *member {
	v.t.Helper()
	for _, f := range v.functions(nic) {
		if int(f.ID.VF()) == vf {
			return f
		}
	}
	v.t.Fatalf("NIC %d has no VF %d", nic+1, vf)
	return nil
}

// step runs what is due now at both NICs.
func (v *virtual) step() {
	for again := true; again; {
		again = false
		for i := range v.nics {
			v.hear(i)
			queue := 0
			if n := len(v.nics[i]); n > 1 && !overRoCE { // the kernel keeps the order of a flow, which go-back-N needs
				queue = v.queue.IntN(n)
			}
			for k, s := range v.nics[i] {
				again = v.stepShard(i, s, k == queue) || again
			}
			again = v.decide(i) || again
		}
	}
}

// stepShard runs what is due now at a shard, with the frames of the uplink if reads is set. It
// reports whether work is left.
func (v *virtual) stepShard(i int, s *Shard, reads bool) (again bool) {
	v.frames = v.frames[:0]
	in := thread.Input{}
	if reads {
		if f, ok := v.links[1-i].Receive(v.now); ok {
			data, segment := f.Data, 0
			if v.super != nil {
				data, segment = v.super.split(data)
			}
			v.frames = append(v.frames, data)
			in.Frames, in.Segments = v.frames, append(v.segments[:0], segment)
			v.segments = in.Segments
			again = true
		}
	}
	if !s.plain.gw.Busy() {
		from := v.take(i, s)
		s.Ports().Take(from)
		again = again || len(from) > 0
	}
	out := &v.outs[i][s.index]
	s.Step(v.now, &in, out)
	out.Do()
	again = again || out.More || s.plain.gw.Busy()
	for _, f := range s.plain.gw.Output() {
		v.arrived[i] = append(v.arrived[i], bytes.Join(f.Parts, nil))
	}
	if s.plain.gw.Waiting() {
		s.tape.Event(tape.Deliver)
	}
	s.plain.gw.Done()
	if !out.More {
		if v.gap != nil && s == v.shards[i] {
			v.gap(i)
		}
		s.Flush(v.now, out)
		out.Do()
		again = again || out.More || !s.inbox.Empty() || s.others.waiting() // as the thread checks before it sleeps
	}
	pending := s.uplink.tx.Pending()
	if v.super != nil {
		pending = v.super.join(pending)
	}
	for _, f := range pending {
		v.record(i, f)
		if v.tap != nil {
			f = v.tap(i, f)
		}
		if f != nil {
			v.links[i].Send(v.now, f)
		}
	}
	s.uplink.tx.Taken(len(s.uplink.tx.Pending()))
	return again
}

// take returns the frames of a shard's ports for the shard.
func (v *virtual) take(i int, s *Shard) (in []gateway.PortInput) {
	rest := v.ports[i][:0:0]
	for _, f := range v.ports[i] {
		if f.From == nil || s.plain.gw.Endpoint(f.From.Function) == f.From {
			in = append(in, f)
		} else {
			rest = append(rest, f)
		}
	}
	v.ports[i] = rest
	return in
}

// decide runs what is due now at a core. It reports whether work is left, for it or its shards.
func (v *virtual) decide(i int) bool {
	out := &v.decided[i]
	v.cores[i].Step(v.now, out)
	out.Effects.Do()
	for _, m := range out.Messages {
		v.mail[1-i] = append(v.mail[1-i], cmMail{at: v.now + cmDelay, link: v.link, msg: m.Data})
	}
	for j := range out.Links {
		v.relink(i, &out.Links[j])
	}
	left := !v.cores[i].Idle()
	for _, s := range v.nics[i] {
		left = left || !s.inbox.Empty() || s.others.waiting()
	}
	return left
}

func (v *virtual) record(from int, frame []byte) {
	if !v.tell {
		return
	}
	var b [9]byte
	binary.BigEndian.PutUint64(b[:], uint64(v.now))
	b[8] = byte(from)
	v.trace.Write(b[:])
	v.trace.Write(frame)
}

// advance moves time to the next event. It returns false if there is none before limit.
func (v *virtual) advance(limit falcon.Time) bool {
	next := limit
	for i := range v.nics {
		for k := range v.outs[i] {
			next = min(next, v.outs[i][k].Deadline)
		}
		next = min(next, v.decided[i].Deadline, v.links[i].Deadline())
		if len(v.mail[i]) > 0 {
			next = min(next, v.mail[i][0].at)
		}
	}
	if next >= limit {
		v.now = limit
		return false
	}
	v.now = max(next, v.now+1)
	v.step()
	return true
}

// until runs until ok returns true, at most for a virtual minute.
func (v *virtual) until(what string, ok func() bool) {
	v.t.Helper()
	limit := v.now + 60e9
	v.step()
	for !ok() {
		if !v.advance(limit) {
			v.t.Fatalf("%s: did not happen in a minute of virtual time", what)
		}
	}
}

// idle runs for a while.
func (v *virtual) idle(d falcon.Time) {
	limit := v.now + d
	v.step()
	for v.advance(limit) {
	}
}

// driver is a guest's driver with its memory, written against the bytes of the ABI so that it can
// also break the rules.
type driver struct {
	v     *virtual
	nic   int
	fn    *member
	ch    *inprocess.Channel
	b     *guest.Binding
	mem   []byte
	path  abi.ModifyQP // as setPath set it
	sq    *ring.Producer
	cq    *ring.CQReader
	id    uint32
	async []abi.AsyncEvent
	rung  int // number of doorbells for sends

	vector uint16 // of the CQ

	pdn, lkey, rkey, cqn, qpn uint32
	sendQ, recvQ              *ring.Producer
	comp                      *ring.CQReader

	scratch [128]byte // a field: passed to an interface, must not be allocated per call
}

// Layout of a driver's memory: device address of its memory, and pages in it.
const (
	driverBase = 1 << 32
	driverMem  = 4 << 20

	pageAdminSQ = 0
	pageAdminCQ = 1
	pageLists   = 2 // 6 list pages, of which two are the admin queues'
	pageCQ      = 8
	pageSQ      = 16
	pageRQ      = 24
	pageData    = 256

	listAdminSQ, listAdminCQ = 4, 5

	cqLog2, sqLog2, rqLog2 = 8, 5, 5
	sqStride, rqStride     = 7, 5
)

const pageSize = abi.PageSize

func newDriver(v *virtual, nic int, vf int) *driver {
	v.t.Helper()
	return newDriverWith(v, nic, vf, abi.FeatureFunctionEvents|abi.FeatureDatagrams)
}

// newDriverWith returns a driver that uses these features.
func newDriverWith(v *virtual, nic int, vf int, features uint64) *driver {
	v.t.Helper()
	d := &driver{v: v, nic: nic, mem: make([]byte, driverMem)}
	d.fn = v.function(nic, vf)
	d.attach(d, features, nil)
	return d
}

// shard returns the shard that has the driver's function.
func (d *driver) shard() *Shard { return d.v.shardOf(d.fn) }

// attach begins a session. end is called when the device ends it.
func (d *driver) attach(g guest.Guest, features uint64, end func(error)) {
	d.v.t.Helper()
	from := guest.Key{Attachment: "bare"}
	var err error
	d.ch, err = inprocess.Open(virtualNIC{d.v, d.nic}, g, from, "bare", &abi.Hello{Major: abi.VersionMajor, Function: uint32(d.fn.ID), Features: features})
	if err != nil {
		d.v.t.Fatal(err)
	}
	d.ch.OnEnd(end)
	d.b = d.fn.Driver()
}

// Identity implements guest.Guest.
func (d *driver) Identity() queues.Identity { return queues.Identity{Transport: "unix", PID: 1} }

// Watch implements guest.Guest.
func (d *driver) Watch(f func(queues.Regions)) (stop func()) {
	f(queues.NewRegions([]queues.Region{{Addr: driverBase, Mem: d.mem}}))
	return func() {}
}

// virtualNIC gives drivers in virtual time the functions that they name, without checking whose
// they are.
type virtualNIC struct {
	v   *virtual
	nic int
}

func (d virtualNIC) Find(number uint32, _ string, _ queues.Identity) (guest.Shard, uint32) {
	for _, s := range d.v.nics[d.nic] {
		if s.funcs.members.get(pfvf.ID(number)) != nil {
			return virtualShard{s, d.v}, number
		}
	}
	return virtualShard{d.v.shards[d.nic], d.v}, number
}

func (d virtualNIC) SetMemory(*guest.Session, uint64) {}

// virtualShard is a shard in virtual time.
type virtualShard struct {
	*Shard
	v *virtual
}

func (h virtualShard) Do(f func(now falcon.Time)) error {
	f(h.v.now)
	return nil
}

func (h virtualShard) Attach(b *guest.Binding, number uint32) (*guest.Device, abi.Status, string) {
	b.Memory = queues.NewMemory(nil)
	f := h.funcs.members.get(pfvf.ID(number)).Device
	return f, f.Attach(b), ""
}

func (d *driver) page(n int) []byte { return d.mem[n*pageSize:] }

func (d *driver) addr(n int) uint64 { return driverBase + uint64(n)*pageSize }

func (d *driver) write(reg, width uint32, value uint64) {
	d.put(reg, width, value)
	d.v.step()
}

// put writes a register in the next Step.
func (d *driver) put(reg, width uint32, value uint64) {
	d.ch.Ask(guest.Request{Kind: guest.RegWrite, Tag: 1, Offset: reg, Width: width, Value: value})
}

func (d *driver) enable() {
	clear(d.page(pageAdminSQ)[:pageSize])
	clear(d.page(pageAdminCQ)[:pageSize])
	d.enableDirty()
}

// enableDirty is enable with areas of the admin queues that may not be zero.
func (d *driver) enableDirty() {
	d.write(abi.RegAdminSQ, 8, d.list(listAdminSQ, pageAdminSQ, 1))
	d.write(abi.RegAdminCQ, 8, d.list(listAdminCQ, pageAdminCQ, 1))
	d.write(abi.RegAdminEntries, 4, 16)
	d.sq = ring.NewProducer(ring.Mem(d.page(pageAdminSQ)), ring.AdminLayout(16))
	d.cq = ring.NewCQReader(ring.Mem(d.page(pageAdminCQ)), ring.AdminLayout(16))
	d.write(abi.RegControl, 4, uint64(abi.ControlEnable))
}

type marshaler interface{ Marshal([]byte) }

// command runs one admin command to its completion.
func (d *driver) command(op abi.AdminOp, params marshaler) (abi.Status, []byte) {
	d.v.t.Helper()
	d.id++
	cmd := abi.AdminCmd{Opcode: op, ID: d.id}
	if params != nil {
		params.Marshal(cmd.Params[:])
	}
	var b [abi.AdminCmdSize]byte
	cmd.Marshal(b[:])
	if err := d.sq.Push(b[:]); err != nil {
		d.v.t.Fatal(err)
	}
	index, _, _ := d.sq.Publish()
	d.ring(abi.DoorbellAdmin, 0, index)
	var cqe abi.AdminCQE
	d.v.until(op.String(), func() bool {
		ok, err := d.cq.Poll(b[:])
		if err != nil {
			d.v.t.Fatal(err)
		}
		return ok
	})
	cqe.Unmarshal(b[:])
	_ = d.cq.Commit()
	if cqe.ID != d.id {
		d.v.t.Fatalf("completion of command %d, want %d", cqe.ID, d.id)
	}
	return cqe.Status, cqe.Result[:]
}

// must is command for commands that have to succeed.
func (d *driver) must(op abi.AdminOp, params marshaler) []byte {
	d.v.t.Helper()
	st, result := d.command(op, params)
	if st != abi.StatusOK {
		d.v.t.Fatalf("%s: %s", op, st)
	}
	return result
}

func (d *driver) ring(kind abi.DoorbellKind, queue, index uint32) {
	d.ch.Ring(kind, queue, index)
}

// list writes the page list of n pages from page first on to list page k and returns its address.
func (d *driver) list(k, first, n int) uint64 {
	for i := range n {
		binary.LittleEndian.PutUint64(d.page(pageLists + k)[8*i:], d.addr(first+i))
	}
	return d.addr(pageLists + k)
}

// setUp enables the function and creates its objects.
func (d *driver) setUp() {
	d.v.t.Helper()
	d.enable()
	d.objects()
}

// objects creates a PD, an MR over the data pages, a CQ and a QP in INIT.
func (d *driver) objects() {
	d.v.t.Helper()
	d.pdn = binary.LittleEndian.Uint32(d.must(abi.AdminOpAllocPD, nil))
	const dataPages = 512
	r := d.must(abi.AdminOpRegMR, &abi.RegMR{
		PDN: d.pdn, Access: abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic,
		IOVA: d.addr(pageData), Length: dataPages * pageSize, Pages: d.list(0, pageData, dataPages), Levels: 1,
	})
	d.lkey, d.rkey = binary.LittleEndian.Uint32(r), binary.LittleEndian.Uint32(r[4:])
	d.cqn = binary.LittleEndian.Uint32(d.must(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: cqLog2, Levels: 1, Vector: d.vector, Pages: d.list(0, pageCQ, 5)}))
	d.comp = ring.NewCQReader(ring.Mem(d.page(pageCQ)), ring.CQLayout(cqLog2))
	d.createQP()
}

// newQP creates the driver's queue pair, with empty queues.
func (d *driver) newQP(typ abi.QPType) {
	d.v.t.Helper()
	clear(d.page(pageSQ)[:2*pageSize])
	clear(d.page(pageRQ)[:pageSize])
	d.qpn = binary.LittleEndian.Uint32(d.must(abi.AdminOpCreateQP, &abi.CreateQP{
		PDN: d.pdn, SendCQ: d.cqn, RecvCQ: d.cqn, Type: typ, SQLog2Entries: sqLog2, RQLog2Entries: rqLog2, SQLog2Stride: sqStride, RQLog2Stride: rqStride,
		MaxSendSGE: 2, MaxRecvSGE: 1, SQLevels: 1, RQLevels: 1, SQPages: d.list(0, pageSQ, 2), RQPages: d.list(1, pageRQ, 1),
	}))
	d.sendQ = ring.NewProducer(ring.Mem(d.page(pageSQ)), ring.QueueLayout(sqLog2, sqStride))
	d.recvQ = ring.NewProducer(ring.Mem(d.page(pageRQ)), ring.QueueLayout(rqLog2, rqStride))
}

func (d *driver) createQP() {
	d.v.t.Helper()
	d.newQP(abi.QPTypeRC)
	d.must(abi.AdminOpModifyQP, &abi.ModifyQP{
		QPN: d.qpn, Mask: abi.QPAttrState | abi.QPAttrAccess | abi.QPAttrRNRRetry | abi.QPAttrMinRNRTimer, State: abi.QPStateInit,
		Access: abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic, RNRRetry: 7, MinRNRTimer: 12,
	})
}

// event waits for an asynchronous event of a type.
func (d *driver) event(typ abi.EventType) abi.AsyncEvent {
	d.v.t.Helper()
	var got abi.AsyncEvent
	d.v.until(typ.String(), func() bool {
		d.collect()
		for i, e := range d.async {
			if e.Type == typ {
				got = e
				d.async = append(d.async[:i], d.async[i+1:]...)
				return true
			}
		}
		return false
	})
	return got
}

// collect takes all events and replies.
func (d *driver) collect() {
	d.async = append(d.async, d.ch.Async()...)
	d.ch.Replies()
}

// connectTo connects to a driver on the other NIC, which accepts.
func (d *driver) connectTo(to *driver, service uint64) {
	d.v.t.Helper()
	if overRoCE {
		wiredPair(d.v, d, to, false)
		return
	}
	to.must(abi.AdminOpCMListen, &abi.CMListen{Service: service})
	d.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: d.qpn, Service: service, DGID: to.fn.GID()})
	e := to.event(abi.EventConnectRequest)
	to.must(abi.AdminOpCMAccept, &abi.CMAccept{CMID: e.Number, QPN: to.qpn})
	d.event(abi.EventEstablished)
	to.event(abi.EventEstablished)
}

// send posts a request with one SGE at offset off of the data pages.
func (d *driver) send(op abi.Opcode, off, n int, remote *driver, remoteOff int) {
	d.v.t.Helper()
	b := d.scratch[:1<<sqStride]
	(&abi.SendWQE{
		WRID: uint64(n), Opcode: op, Flags: abi.SendSignaled, NumSGE: 1,
		RemoteAddr: remote.addr(pageData) + uint64(remoteOff), RKey: remote.rkey,
	}).Marshal(b[:])
	(&abi.SGE{Addr: d.addr(pageData) + uint64(off), Length: uint32(n), LKey: d.lkey}).Marshal(b[abi.SendWQEHeader:])
	if err := d.sendQ.Push(b[:]); err != nil {
		d.v.t.Fatal(err)
	}
	index, need, _ := d.sendQ.Publish()
	if need || d.b.Features&abi.FeatureEventIndex == 0 {
		d.rung++
		d.ring(abi.DoorbellSQ, d.qpn, index)
	}
}

func (d *driver) receive(off, n int) {
	d.v.t.Helper()
	b := d.scratch[:1<<rqStride]
	(&abi.RecvWQE{WRID: uint64(off), NumSGE: 1}).Marshal(b[:])
	(&abi.SGE{Addr: d.addr(pageData) + uint64(off), Length: uint32(n), LKey: d.lkey}).Marshal(b[abi.RecvWQEHeader:])
	if err := d.recvQ.Push(b[:]); err != nil {
		d.v.t.Fatal(err)
	}
	index, _, _ := d.recvQ.Publish()
	d.ring(abi.DoorbellRQ, d.qpn, index)
}

// completion takes one completion if there is one.
func (d *driver) completion() (cqe abi.CQE, ok bool) {
	b := d.scratch[:abi.CQESize]
	ok, err := d.comp.Poll(b)
	if err != nil {
		d.v.t.Fatal(err)
	}
	if ok {
		cqe.Unmarshal(b[:])
		_ = d.comp.Commit()
	}
	return cqe, ok
}

// done waits for one completion.
func (d *driver) done() (cqe abi.CQE) {
	d.v.t.Helper()
	d.v.until("completion", func() (ok bool) {
		cqe, ok = d.completion()
		return ok
	})
	return cqe
}

func (d *driver) data() []byte { return d.page(pageData) }

// pair connects two drivers, one on each NIC.
func pair(v *virtual) (a, b *driver) {
	v.t.Helper()
	a, b = newDriver(v, 0, 1), other(v)
	a.setUp()
	b.setUp()
	a.connectTo(b, 99)
	return a, b
}

// oneNIC makes pairs consist of functions of one NIC.
var oneNIC bool

// insideOneNIC sets oneNIC until the test ends.
func insideOneNIC(t *testing.T) {
	oneNIC = true
	t.Cleanup(func() { oneNIC = false })
}

// eachDistance runs a test between two NICs and inside one.
func eachDistance(t *testing.T, test func(*testing.T)) {
	t.Run("two NICs", test)
	t.Run("one NIC", func(t *testing.T) {
		insideOneNIC(t)
		test(t)
	})
}

// other returns a driver as peer for VF 1 of NIC 0.
func other(v *virtual) *driver {
	if oneNIC {
		return newDriver(v, 0, 2)
	}
	return newDriver(v, 1, 1)
}
