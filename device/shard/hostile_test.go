package shard

import (
	"bytes"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// hostile is a guest controlled by its input: bytes on the stream, registers, commands,
// descriptors, doorbells, words in shared memory and in its window. It knows the numbers and keys
// of others, so it does not have to guess.
type hostile struct {
	w    *hostileWorld
	d    *driver // for its memory; its rings are not used
	win  *ivshmem.Window
	ring []byte // ring of its bell
	in   []byte
	out  bool // the session is over

	admin, bells uint32   // producers
	numbers      []uint32 // numbers that the device returned, newest last
	faults       map[abi.Fault]int
	statuses     map[abi.Status]int
	done         uint64 // number of actions
}

func newHostile(t testing.TB, w *hostileWorld) *hostile {
	t.Helper()
	h := &hostile{w: w, d: newDriver(w.v, 0, 1), faults: map[abi.Fault]int{}, statuses: map[abi.Status]int{}}
	f := h.d.fn
	var err error
	if h.win, err = ivshmem.NewWindow(uint32(f.ID), abi.FunctionVF); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.win.Close() })
	h.ring = windowBells(t, windowMemory(t, h.win))
	_ = h.d.ch.Close(nil)
	return h
}

// Identity implements guest.Guest.
func (h *hostile) Identity() queues.Identity { return h.d.Identity() }

// Watch implements guest.Guest.
func (h *hostile) Watch(f func(queues.Regions)) (stop func()) { return h.d.Watch(f) }

// Bell implements queues.Ringer.
func (h *hostile) Bell(uint32) (bell queues.Bell, err error) { // empties the rings
	return h.win.Listen()
}

func (h *hostile) byte() byte {
	if len(h.in) == 0 {
		return 0
	}
	b := h.in[0]
	h.in = h.in[1:]
	return b
}

func (h *hostile) u64() uint64 {
	var b [8]byte
	h.in = h.in[copy(b[:], h.in):]
	return binary.LittleEndian.Uint64(b[:])
}

// value returns a number that may mean something to the device.
func (h *hostile) value() uint64 {
	w, k := h.w, h.byte()
	switch k % 20 {
	case 0:
		return uint64(h.byte())
	case 1, 2, 3:
		if n := len(h.numbers); n > 0 {
			return uint64(h.numbers[n-1-int(h.byte())%n])
		}
		return 1
	case 4:
		return uint64(w.target.lkey)
	case 5:
		return uint64(w.target.rkey)
	case 6:
		return uint64(w.target.qpn)
	case 7:
		return uint64(w.target.cqn)
	case 8:
		return uint64(w.witness.rkey)
	case 9:
		return uint64(w.accomplice.rkey)
	case 10, 11:
		return h.d.addr(pageData) + uint64(h.byte())*64
	case 12:
		return h.d.addr(int(h.byte() % 64))
	case 13:
		return h.d.addr(0) + driverMem - uint64(h.byte())*512
	case 14:
		return 1 << (h.byte() % 64)
	case 15:
		return 1<<(h.byte()%64) - 1
	case 16:
		return -uint64(h.byte())
	case 17:
		return h.u64()
	case 18:
		return uint64(h.admin) + uint64(h.byte()%4)
	}
	return uint64(k) << 8
}

// attack attaches, prepares as far as the first byte says, and acts by the rest.
func (h *hostile) attack(input []byte) {
	h.in = input
	h.enter()
	switch first := h.byte(); {
	case first%8 == 0:
	case first%8 == 1:
		h.enable()
	default:
		h.prepare(first%8 > 3)
	}
	for ops := 0; len(h.in) > 0 && ops < 200 && !h.out; ops++ {
		h.act()
		if h.d.fn.Lifecycle.State() == abi.StateError && !h.out && h.byte()%2 == 0 { // start again
			fault, _ := h.d.fn.Lifecycle.Fault()
			h.faults[fault]++
			h.register(abi.RegControl, 4, uint64(abi.ControlReset))
			clear(h.d.mem[:bystanderControl])
			h.numbers = h.numbers[:0]
			h.prepare(h.byte()%2 == 0)
		}
	}
	h.w.v.step()
	h.settle()
}

// enter begins a session, as after a hello.
func (h *hostile) enter() {
	d := h.d
	clear(d.mem[:bystanderControl])
	clear(d.data()[:bystanderData])
	d.attach(h, guest.Features&^uint64(h.byte()), func(error) { h.out = true })
	h.out, h.admin, h.bells, h.numbers = false, 0, 0, h.numbers[:0]
}

// leave ends the session, as its carrier does.
func (h *hostile) leave() {
	v, f := h.w.v, h.d.fn
	v.step()
	_ = h.d.ch.Close(nil)
	fault, _ := f.Lifecycle.Fault()
	h.faults[fault]++
	if f.Verbs() != nil || len(f.conns.IDs()) != 0 || f.Driver() != nil {
		v.t.Fatalf("hostile: %d connections and objects %t are left", len(f.conns.IDs()), f.Verbs() != nil)
	}
	if st := f.Lifecycle.State(); st != abi.StateReset && st != abi.StateError {
		v.t.Fatalf("hostile: state %s after the session", st)
	}
}

func (h *hostile) settle() {
	h.d.collect()
	h.d.async = h.d.async[:0]
}

func (h *hostile) register(offset, width uint32, v uint64) {
	h.d.ch.Ask(guest.Request{Kind: guest.RegWrite, Offset: offset, Width: width, Value: v})
	h.w.v.step()
	h.settle()
}

func (h *hostile) enable() {
	clear(h.d.page(pageAdminSQ)[:abi.QueueHeaderSize])
	clear(h.d.page(pageAdminCQ)[:abi.QueueHeaderSize])
	h.register(abi.RegAdminSQ, 8, h.d.list(listAdminSQ, pageAdminSQ, 1))
	h.register(abi.RegAdminCQ, 8, h.d.list(listAdminCQ, pageAdminCQ, 1))
	h.register(abi.RegAdminEntries, 4, 16)
	h.register(abi.RegControl, 4, uint64(abi.ControlEnable))
	h.admin = 0
}

// prepare creates objects as an honest driver, and perhaps a connection.
func (h *hostile) prepare(connect bool) {
	h.enable()
	for op := range 5 {
		h.template(byte(op))
	}
	if connect {
		h.template(5)
		h.w.tend()
		h.w.v.idle(1_000_000)
		h.settle()
	}
}

// number returns the i-th number that the device returned in prepare: PD, lkey, rkey, CQ, QP.
func (h *hostile) number(i int) uint32 {
	if i < len(h.numbers) {
		return h.numbers[i]
	}
	return 0
}

// template sends a command that is valid, or nearly so.
func (h *hostile) template(which byte) {
	d := h.d
	switch which % 12 {
	case 0:
		h.command(abi.AdminOpAllocPD, nil)
	case 1:
		h.command(abi.AdminOpRegMR, &abi.RegMR{
			PDN: h.number(0), Access: abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic,
			IOVA: d.addr(pageData), Length: bystanderData, Pages: d.list(0, pageData, 16), Levels: 1,
		})
	case 2:
		h.command(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: cqLog2, Levels: 1, Pages: d.list(1, pageCQ, 5)})
	case 3:
		typ := abi.QPTypeRC
		if which >= 192 {
			typ = abi.QPTypeUC
		}
		h.command(abi.AdminOpCreateQP, &abi.CreateQP{
			PDN: h.number(0), SendCQ: h.number(3), RecvCQ: h.number(3), Type: typ, SQLog2Entries: sqLog2, RQLog2Entries: rqLog2,
			SQLog2Stride: sqStride, RQLog2Stride: rqStride, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: 32, SQLevels: 1, RQLevels: 1,
			SQPages: d.list(2, pageSQ, 2), RQPages: d.list(3, pageRQ, 1),
		})
	case 4:
		h.command(abi.AdminOpModifyQP, &abi.ModifyQP{
			QPN: h.number(4), Mask: abi.QPAttrState | abi.QPAttrAccess, State: abi.QPStateInit,
			Access: abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic,
		})
	case 5:
		h.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: h.number(4), Service: accompliceService, DGID: h.w.accomplice.fn.GID()})
	case 6:
		h.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: h.number(4), Service: h.value(), DGID: h.w.target.fn.GID()})
	case 7:
		h.command(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: h.number(4), Mask: abi.QPAttrState, State: abi.QPState(h.byte() % 8)})
	case 8:
		h.command(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: h.number(4)})
	case 9:
		h.command(abi.AdminOpDeregMR, &abi.DeregMR{LKey: h.number(1)})
	case 10:
		h.command(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: uint32(h.value())})
	case 11:
		h.command(abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: h.number(3)})
	}
}

func (h *hostile) command(op abi.AdminOp, params marshaler) {
	cmd := abi.AdminCmd{Opcode: op, ID: h.admin}
	if params != nil {
		params.Marshal(cmd.Params[:])
	}
	h.submit(&cmd)
}

// submit writes a command where the device will read it, rings, and keeps the numbers that a
// success returns.
func (h *hostile) submit(cmd *abi.AdminCmd) {
	slot := h.admin % 16
	at := abi.QueueHeaderSize + slot*abi.AdminCmdSize
	cmd.Marshal(h.d.page(pageAdminSQ)[at:])
	h.admin++
	binary.LittleEndian.PutUint32(h.d.page(pageAdminSQ), h.admin)
	h.d.ring(abi.DoorbellAdmin, 0, h.admin)
	h.w.v.step()
	var cqe abi.AdminCQE
	cqe.Unmarshal(h.d.page(pageAdminCQ)[at:])
	if cqe.ID == cmd.ID && cqe.Tail>>56&1 == uint64(1-(h.admin-1)/16%2) {
		h.statuses[cqe.Status]++
		binary.LittleEndian.PutUint32(h.d.page(pageAdminCQ), h.admin)
		if cqe.Status == abi.StatusOK {
			for at := 0; at < 8; at += 4 {
				if n := binary.LittleEndian.Uint32(cqe.Result[at:]); n != 0 && len(h.numbers) < 32 {
					h.numbers = append(h.numbers, n)
				}
			}
		}
	}
	h.settle()
}

// actions are the cases of act; those that soon end a session are rarer.
var actions = [...]uint8{
	0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 8, 8, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 11, 11,
	12, 12, 12, 13, 14, 15, 15, 15, 16, 16, 16,
}

// act does one thing.
func (h *hostile) act() {
	h.done++
	d, v := h.d, h.w.v
	op := h.byte()
	switch actions[op%uint8(len(actions))] {
	case 0: // raw bytes of the stream
		h.stream(h.raw(int(h.byte())))
	case 1: // messages with random bodies
		var m []byte
		for range 1 + h.byte()%4 {
			var b []byte
			switch typ := abi.MsgType(h.byte() % 16); typ {
			case abi.MsgRegRead:
				b = abi.AppendStruct(nil, h.value(), &abi.RegRead{Offset: uint32(h.byte()) * 4, Width: 4 << (h.byte() % 2)})
			case abi.MsgRegWrite:
				b = abi.AppendStruct(nil, h.value(), &abi.RegWrite{Offset: uint32(h.byte()) * 4, Width: 4 << (h.byte() % 2), Value: h.value()})
			case abi.MsgHeartbeat:
				b = abi.AppendStruct(nil, h.value(), &abi.Heartbeat{Token: h.value()})
			default:
				if h.byte()%8 != 0 {
					typ = abi.MsgDoorbell
				}
				b = abi.AppendMessage(nil, typ, h.value(), h.raw(abi.DoorbellSize*int(1+h.byte()%8)))
			}
			m = append(m, b...)
		}
		h.stream(m)
	case 2:
		h.register(uint32(h.byte())*4, 4<<(h.byte()%2), h.value())
	case 3:
		d.ch.Ask(guest.Request{Kind: guest.RegRead, Offset: uint32(h.byte()) * 4, Width: uint32(h.byte() % 16)})
	case 4:
		h.register(abi.RegControl, 4, uint64(h.byte()%4))
	case 5:
		h.d.ch.Ring(abi.DoorbellKind(1+h.byte()%3), h.number(4), uint32(h.value()))
	case 6:
		d.ring(abi.DoorbellKind(h.byte()%6), uint32(h.value()), uint32(h.value()))
	case 7:
		h.poke()
	case 8: // a random command
		cmd := abi.AdminCmd{Opcode: abi.AdminOp(h.byte() % 96), ID: h.admin}
		for at := 0; at < len(cmd.Params); at += 4 << (h.byte() % 2) {
			binary.LittleEndian.PutUint32(cmd.Params[at:], uint32(h.value()))
		}
		h.submit(&cmd)
	case 9:
		h.template(h.byte())
	case 10:
		h.postSend(false)
	case 11:
		h.postSend(true)
	case 12:
		h.postRecv()
	case 13:
		h.ringWindow()
	case 16: // takes completions, or pretends to
		d.ch.Ask(guest.Request{Kind: guest.Ring, Doorbell: abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: h.number(3), Index: uint32(h.byte()), Flags: h.byte() % 2}})
	case 14: // memory is added and removed
		rs := []queues.Region{{Addr: driverBase, Mem: d.mem}}
		switch h.byte() % 4 {
		case 0:
			rs[0].Mem = d.mem[:pageSize*int(h.byte())]
		case 1:
			rs = nil
		}
		d.b.Memory.SetRegions(rs)
	case 15:
		v.idle(int64(h.byte()) * 20_000)
		h.w.tend()
	}
	if op&0x80 != 0 {
		v.step()
		h.settle()
	}
}

func (h *hostile) raw(n int) []byte {
	b := h.in[:min(n, len(h.in))]
	h.in = h.in[len(b):]
	return b
}

// stream gives bytes to the session's reader, which must not wait for the shard: only that much is
// read before the shard takes the requests.
func (h *hostile) stream(b []byte) {
	if fault := guest.Parse(bytes.NewReader(b), asker{h.d.ch.Session()}, h.w.v.shards[0].cfg.NIC.Strict); fault != nil {
		h.d.fn.Fault(abi.FaultProtocol, fault.Error())
		h.out = true
	}
	h.w.v.step()
	h.settle()
}

// poke writes a word where the device reads.
func (h *hostile) poke() {
	at := [...]int{
		pageAdminSQ * pageSize, pageAdminCQ * pageSize, pageLists * pageSize, (pageLists + 1) * pageSize, (pageLists + 2) * pageSize, (pageLists + 3) * pageSize,
		pageCQ * pageSize, pageSQ * pageSize, pageRQ * pageSize, pageSQ*pageSize + abi.QueueHeaderSize, pageRQ*pageSize + abi.QueueHeaderSize,
		pageCQ*pageSize + abi.CQHeaderArm, pageData * pageSize,
	}[h.byte()%13]
	at += 4 * int(h.byte())
	if v := h.value(); h.byte()%2 == 0 {
		binary.LittleEndian.PutUint32(h.d.mem[at:], uint32(v))
	} else {
		binary.LittleEndian.PutUint64(h.d.mem[at&^7:], v)
	}
}

// postSend writes a send entry and the producer, and may ring.
func (h *hostile) postSend(wild bool) {
	sq := h.d.page(pageSQ)
	producer := binary.LittleEndian.Uint32(sq)
	b := sq[abi.QueueHeaderSize+producer%(1<<sqLog2)<<sqStride:][:1<<sqStride]
	kind := h.byte()
	e := abi.SendWQE{
		WRID: uint64(producer), Opcode: abi.Opcode(kind % 12), Flags: abi.SendSignaled | h.byte()&0x30, NumSGE: 1,
		RemoteAddr: h.w.accomplice.addr(pageData) + uint64(h.byte())*64, RKey: h.w.accomplice.rkey, CompareAdd: 1, Swap: 2,
	}
	sge := abi.SGE{Addr: h.d.addr(pageData) + uint64(h.byte())*64, Length: uint32(h.byte()) * 8, LKey: h.number(1)}
	if kind&0x40 != 0 {
		e.RemoteAddr, e.RKey = h.value(), uint32(h.value())
	}
	if wild {
		sge.Addr, sge.Length, sge.LKey = h.value(), uint32(h.value()), uint32(h.value())
		e.NumSGE, e.Flags, e.InlineLen = h.byte(), h.byte(), uint32(h.value())
	}
	e.Marshal(b)
	sge.Marshal(b[abi.SendWQEHeader:])
	binary.LittleEndian.PutUint32(sq, producer+1)
	if h.byte()%4 != 0 {
		h.d.ring(abi.DoorbellSQ, h.number(4), producer+1)
	}
}

func (h *hostile) postRecv() {
	rq := h.d.page(pageRQ)
	producer := binary.LittleEndian.Uint32(rq)
	b := rq[abi.QueueHeaderSize+producer%(1<<rqLog2)<<rqStride:][:1<<rqStride]
	(&abi.RecvWQE{WRID: uint64(producer), NumSGE: h.byte() % 3}).Marshal(b)
	(&abi.SGE{Addr: h.value(), Length: uint32(h.value()), LKey: h.number(1)}).Marshal(b[abi.RecvWQEHeader:])
	binary.LittleEndian.PutUint32(rq, producer+1)
	if h.byte()%2 == 0 {
		h.d.ring(abi.DoorbellRQ, h.number(4), producer+1)
	}
}

// ringWindow puts records in the bell ring, or a word anywhere in it.
func (h *hostile) ringWindow() {
	if h.byte()%4 == 0 {
		binary.LittleEndian.PutUint32(h.ring[int(h.byte())*4:], uint32(h.value()))
		return
	}
	for range 1 + h.byte()%4 {
		b := h.ring[abi.QueueHeaderSize+h.bells%(1<<abi.WindowBellsLog2)*abi.DoorbellSize:]
		(&abi.Doorbell{Kind: abi.DoorbellKind(h.byte() % 5), Queue: uint32(h.value()), Index: uint32(h.value()), Flags: h.byte() % 4}).Marshal(b)
		h.bells++
	}
	binary.LittleEndian.PutUint32(h.ring, h.bells)
}

// FuzzHostileClient gives the whole interface of a guest to the fuzzer. It may stop no more than
// its own function: see hostileWorld.
func FuzzHostileClient(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 64 {
		f.Add(randomAttack(r))
	}
	w := newHostileWorld(f, 1)
	f.Fuzz(func(t *testing.T, input []byte) {
		w.v.t = t
		w.round(input)
	})
}

func randomAttack(r *rand.Rand) []byte {
	b := make([]byte, 16+r.IntN(400))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

var (
	hostileSeed  = flag.Uint64("hostile.seed", 1, "seed of TestHostileClient")
	hostileCount = flag.Int("hostile.n", 3000, "rounds of TestHostileClient")
	hostileTime  = flag.Duration("hostile.time", 0, "end TestHostileClient after this time, however many rounds it had")
)

// TestHostileClient runs the attacks of a seed. The flags make it a long one. (DEV-906)
func TestHostileClient(t *testing.T) {
	w := newHostileWorld(t, *hostileSeed)
	started, done := time.Now(), 0
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, round %d", *hostileSeed, done)
		}
	}()
	for ; done < *hostileCount; done++ {
		input := randomAttack(rand.New(rand.NewPCG(*hostileSeed, uint64(done))))
		w.round(input)
		if *hostileTime > 0 && time.Since(started) > *hostileTime {
			break
		}
	}
	w.cleanUp()
	t.Logf("%d rounds, %.0f/s, %d acts; ends by fault: %v; command statuses: %v", done, float64(done)/time.Since(started).Seconds(), w.h.done, w.h.faults, w.h.statuses)
	if *hostileCount >= 3000 && (len(w.h.faults) < 4 || w.h.statuses[abi.StatusOK] == 0) {
		t.Error("the attacks do not get deep enough to mean anything")
	}
}
