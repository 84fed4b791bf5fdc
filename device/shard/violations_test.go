package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// offender is a driver on function 1 of a strict NIC that is about to break a rule.
type offender struct {
	*driver
	bell queues.Bell
	win  []byte // its bell ring
}

// stream gives bytes to the session's reader as if they had come from the guest.
func (o *offender) stream(b []byte) {
	if fault := guest.Parse(bytes.NewReader(b), asker{o.ch.Session()}, o.v.shards[o.nic].cfg.NIC.Strict); fault != nil {
		if b := (*guest.Breach)(nil); errors.As(fault, &b) {
			o.fn.Broke(b.Clause, abi.RingStream, 0, 0, b.Bytes)
		}
	}
	o.v.step()
}

// asker is a session that parses a stream of bytes.
type asker struct{ *guest.Session }

// Heartbeat implements guest.Asker.
func (asker) Heartbeat(uint64, *abi.Heartbeat) bool { return true }

// message returns a message of the control stream.
func message(t abi.MsgType, flags uint16, body []byte) []byte {
	b := make([]byte, abi.MsgHeaderSize)
	(&abi.MsgHeader{Length: uint32(abi.MsgHeaderSize + len(body)), Type: t, Flags: flags}).Marshal(b)
	return append(b, body...)
}

// raw submits a command with parameters as bytes.
func (o *offender) raw(cmd abi.AdminCmd, change func(params []byte)) {
	if change != nil {
		change(cmd.Params[:])
	}
	o.id++
	cmd.ID = o.id
	var b [abi.AdminCmdSize]byte
	cmd.Marshal(b[:])
	if err := o.sq.Push(b[:]); err != nil {
		o.v.t.Fatal(err)
	}
	index, _, _ := o.sq.Publish()
	o.ring(abi.DoorbellAdmin, 0, index)
	o.v.step()
	_, _ = o.cq.Poll(b[:])
	_ = o.cq.Commit()
}

// post puts an entry of any bytes into the send queue and rings.
func (o *offender) post(e abi.SendWQE, change func(entry []byte)) {
	b := make([]byte, 1<<sqStride)
	e.Marshal(b)
	(&abi.SGE{Addr: o.addr(pageData), Length: 8, LKey: o.lkey}).Marshal(b[abi.SendWQEHeader:])
	if change != nil {
		change(b)
	}
	if err := o.sendQ.Push(b); err != nil {
		o.v.t.Fatal(err)
	}
	index, _, _ := o.sendQ.Publish()
	o.ring(abi.DoorbellSQ, o.qpn, index)
	o.v.idle(1_000_000)
}

// bellRecord puts one record into the bell ring.
func (o *offender) bellRecord(d abi.Doorbell) {
	d.Marshal(o.win[abi.QueueHeaderSize:])
	binary.LittleEndian.PutUint32(o.win, 1)
	o.v.step()
}

// receiveAs posts a receive entry, modified by change, and makes the peer send to it.
func (o *offender) receiveAs(from *driver, change func(entry []byte)) {
	o.receive(0, 8)
	change(o.page(pageRQ)[abi.QueueHeaderSize:])
	from.send(abi.OpSend, 0, 8, o.driver, 0)
	o.v.idle(1_000_000)
}

func (o *offender) word(at int, v uint32) { binary.LittleEndian.PutUint32(o.mem[at:], v) }

// offences has, for each clause, a function that breaks it.
var offences = map[string]func(o *offender, to *driver){
	"DRV-102": func(o *offender, _ *driver) {
		o.raw(abi.AdminCmd{Opcode: abi.AdminOpQueryDevice, Flags: 1}, nil)
	},
	"DRV-103": func(o *offender, _ *driver) {
		o.raw(abi.AdminCmd{Opcode: abi.AdminOpCreateCQ}, func(p []byte) {
			(&abi.CreateCQ{Log2Entries: 2, Levels: 1, Pages: o.list(3, 64, 1), Vector: 1}).Marshal(p)
		})
	},
	"DRV-201": func(o *offender, _ *driver) {
		o.stream([]byte{8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	},
	"DRV-202": func(o *offender, _ *driver) { o.stream(message(abi.MsgHello, 0, make([]byte, 64))) },
	"DRV-205": func(o *offender, _ *driver) {
		for n := range uint32(256) { // of as many objects
			o.fn.AsyncEvent(abi.EventCQError, n, 0, "")
		}
		o.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: o.qpn, Service: 5, DGID: o.fn.GID()})
	},
	"DRV-206": func(o *offender, _ *driver) { o.stream(message(abi.MsgDoorbell, 0, make([]byte, 7))) },
	"DRV-301": func(o *offender, _ *driver) { o.write(abi.RegAdminSQ, 8, o.addr(40)) },
	"DRV-304": func(o *offender, _ *driver) {
		o.fn.Fault(abi.FaultCommand, "for the test")
		o.v.step()
		o.write(abi.RegControl, 4, uint64(abi.ControlEnable))
	},
	"DRV-306": func(o *offender, _ *driver) { o.write(abi.RegControl, 8, 1) },
	"DRV-401": func(o *offender, _ *driver) {
		o.command(abi.AdminOpRegMR, &abi.RegMR{PDN: o.pdn, Length: 4096, Pages: 1 << 50, Levels: 1})
	},
	"DRV-402": func(o *offender, to *driver) {
		o.b.Memory.SetRegions(nil)
		o.ring(abi.DoorbellSQ, o.qpn, 1)
		o.v.step()
	},
	"DRV-403": func(o *offender, _ *driver) {
		o.command(abi.AdminOpRegMR, &abi.RegMR{PDN: o.pdn, Length: 4096, Pages: o.addr(3) + 8, Levels: 1})
	},
	"DRV-501": func(o *offender, _ *driver) {
		for range 17 { // it does not take their completions
			o.driver.post(abi.AdminOpAllocPD, nil)
			o.v.step()
		}
	},
	"DRV-502": func(o *offender, _ *driver) {
		o.word(pageAdminSQ*pageSize, o.id-1)
		o.ring(abi.DoorbellAdmin, 0, o.id-1)
		o.v.step()
	},
	"DRV-601": func(o *offender, _ *driver) {
		o.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: o.qpn, Mask: abi.QPAttrState, State: abi.QPStateReset})
		o.ring(abi.DoorbellSQ, o.qpn, 1)
		o.v.step()
	},
	"DRV-602": func(o *offender, _ *driver) {
		o.word(pageSQ*pageSize, 1000)
		o.ring(abi.DoorbellSQ, o.qpn, 1000)
		o.v.step()
	},
	"DRV-603": func(o *offender, _ *driver) {
		o.ring(abi.DoorbellSQ, o.qpn, 1)
		o.v.step()
	},
	"DRV-608": func(o *offender, to *driver) {
		o.post(abi.SendWQE{Opcode: abi.OpWrite, NumSGE: 200, RemoteAddr: to.addr(pageData), RKey: to.rkey}, nil)
	},
	"DRV-611": func(o *offender, to *driver) {
		o.fn.Verbs().UseFeatures(abi.FeatureExtendedVerbs)
		o.post(abi.SendWQE{Opcode: abi.OpMaskedFetchAdd, NumSGE: 2, RemoteAddr: to.addr(pageData), RKey: to.rkey}, nil)
	},
	"DRV-701": func(o *offender, _ *driver) {
		o.word(64*pageSize+200, 7)
		o.must(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 2, Levels: 1, Pages: o.list(3, 64, 1)})
	},
	"DRV-704": func(o *offender, to *driver) {
		o.word(pageCQ*pageSize, 1000)
		overflow(o, to)
	},
	"DRV-705": func(o *offender, to *driver) { overflow(o, to) },
	"DRV-708": func(o *offender, _ *driver) {
		o.ring(abi.DoorbellCQArm, o.cqn, 9)
		o.v.step()
	},
	"DRV-709": func(o *offender, to *driver) {
		binary.LittleEndian.PutUint64(o.mem[pageCQ*pageSize+abi.CQHeaderArm:], 1<<abi.CQArmNumber|99)
		o.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, NumSGE: 1, RemoteAddr: to.addr(pageData), RKey: to.rkey}, nil)
	},
	"DRV-801": func(o *offender, _ *driver) {
		o.ring(abi.DoorbellRQ, 0xabc, 1)
		o.v.step()
	},
	"DRV-902": func(o *offender, to *driver) { // it is connected
		o.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: o.qpn, Service: 1, DGID: to.fn.GID()})
	},
	"DRV-911": func(o *offender, _ *driver) {
		o.command(abi.AdminOpCMListen, &abi.CMListen{Service: abi.FirstReservedService})
	},
	"DRV-924": func(o *offender, _ *driver) {
		o.b.Features |= abi.FeatureExtendedVerbs
		o.command(abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeXRCSend, PDN: o.pdn, SendCQ: o.cqn, RecvCQ: o.cqn})
	},
	"DRV-960": func(o *offender, _ *driver) {
		o.b.Features |= abi.FeatureExtendedVerbs
		o.command(abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeUC, Ordering: abi.OrderingWeak, PDN: o.pdn, SendCQ: o.cqn, RecvCQ: o.cqn})
	},
	"DRV-1003": func(o *offender, _ *driver) {
		binary.LittleEndian.PutUint32(o.win, 1<<20)
		o.v.step()
	},
	"DRV-1004": func(o *offender, _ *driver) {
		o.bellRecord(abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: o.cqn})
		o.ring(abi.DoorbellCQArm, o.cqn, 0)
		o.v.step()
	},
	"DRV-1007": func(o *offender, _ *driver) {
		s := o.v.shards[o.nic]
		for range 9 {
			s.guests.Bells.NoteReadable(o.bell.FD())
			o.v.step()
		}
	},
	"DRV-1010": func(o *offender, _ *driver) {
		r := o.must(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 1, Levels: 1, Vector: 1, Pages: o.list(3, 40, 1)})
		news := func() { // armed behind: the event comes at once
			o.ring(abi.DoorbellCQArm, binary.LittleEndian.Uint32(r), ^uint32(0))
			o.v.step()
		}
		news()
		o.eventConsumer(0, 500)
		news()
	},
}

// usedBy returns the features that an offence needs beside those of all offenders.
func usedBy(clause string) uint64 {
	if clause == "DRV-1010" {
		return abi.FeatureVectors
	}
	return 0
}

// eventConsumer writes the driver's index of event queue n.
func (o *offender) eventConsumer(n int, v uint32) {
	_ = o.bell.(queues.Interrupter).EventQueues()[n].Store32(abi.QueueHeaderConsumer, v)
}

// overflow completes more than the CQ holds.
func overflow(o *offender, to *driver) {
	for range 1<<cqLog2 + 2 {
		if o.fn.Lifecycle.State() != abi.StateReady {
			return
		}
		o.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, NumSGE: 1, RemoteAddr: to.addr(pageData), RKey: to.rkey}, nil)
	}
}

// TestEveryBrokenClauseIsRecordedOnce breaks every clause for drivers that a device can check, each on a fresh NIC: the
// violation is kept once with the clause, its place and the bytes, the driver reads the same as the
// operator, and no other function has any. (DEV-105)
func TestEveryBrokenClauseIsRecordedOnce(t *testing.T) {
	text, err := os.ReadFile("../../docs/abi/index.md")
	if err != nil {
		t.Fatal(err)
	}
	var clauses []string
	for _, m := range regexp.MustCompile(`\*\*(DRV-\d+)\*\*`).FindAllStringSubmatch(string(text), -1) {
		clauses = append(clauses, m[1])
	}
	for _, c := range abi.Clauses {
		if (offences[c.Clause.String()] == nil) == (c.Unseen == "") {
			t.Errorf("%s: neither provoked here nor said to be undetectable, or both", c.Clause)
		}
	}
	for clause := range maps.Keys(offences) {
		if !slices.Contains(clauses, clause) {
			t.Errorf("%s is no clause of docs/abi", clause)
		}
	}
	for _, clause := range slices.Sorted(maps.Keys(offences)) {
		t.Run(clause, func(t *testing.T) {
			v := newVirtualWith(t, 1, wire100us, func(_ int, c *config.Config) { c.NIC.Strict = true })
			v.tell = false
			o, to := newOffender(t, v, usedBy(clause)), newDriver(v, 1, 1)
			o.setUp()
			to.setUp()
			o.connectTo(to, 99)
			if n := len(o.fn.Violations().All()) + len(to.fn.Violations().All()); n != 0 {
				t.Fatalf("%d violations of honest drivers: %+v", n, slices.Concat(o.fn.Violations().All(), to.fn.Violations().All()))
			}
			offences[clause](o, to)
			i := slices.IndexFunc(o.fn.Violations().All(), func(x guest.Violation) bool { return abi.Clause(x.Clause).String() == clause })
			if i < 0 {
				t.Fatalf("not noticed; there is %+v", o.fn.Violations().All())
			}
			if n := len(to.fn.Violations().All()); n != 0 {
				t.Errorf("the peer has %d", n)
			}
			t.Logf("%+v", o.fn.Violations().All()[i].Violation)
			o.readsThem(t)
		})
	}
}

func newOffender(t *testing.T, v *virtual, features uint64) *offender {
	t.Helper()
	o := &offender{driver: newDriverWith(v, 0, 1, abi.FeatureArmWord|features)}
	win, err := ivshmem.NewWindow(uint32(o.fn.ID), abi.FunctionVF)
	if err != nil {
		t.Fatal(err)
	}
	o.win = windowBells(t, windowMemory(t, win))
	bell, err := win.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		bell.Close()
		win.Close()
	})
	o.ch.OnEnd(func(err error) { o.fn.Fault(abi.FaultProtocol, err.Error()) })
	v.shards[0].guests.Listen(o.b, bell, nil)
	o.bell = bell
	return o
}

// readsThem compares what the driver reads, after a reset, with what is kept.
func (o *offender) readsThem(t *testing.T) {
	t.Helper()
	kept := slices.Clone(o.fn.Violations().All())
	slices.Reverse(kept)
	o.b.Memory.SetRegions([]queues.Region{{Addr: driverBase, Mem: o.mem}})
	o.b.UsesRing = false
	o.write(abi.RegControl, 4, uint64(abi.ControlReset))
	clear(o.mem)
	o.id = 0
	o.enable()
	for i, want := range kept {
		var got abi.Violation
		got.Unmarshal(o.must(abi.AdminOpQueryViolation, &abi.QueryViolation{Index: uint32(i)}))
		if got != want.Violation {
			t.Errorf("the driver reads %+v, kept is %+v", got, want.Violation)
		}
	}
	if st, _ := o.command(abi.AdminOpQueryViolation, &abi.QueryViolation{Index: uint32(len(kept))}); st != abi.StatusNotFound {
		t.Errorf("behind the last: %s", st)
	}
}

// TestAViolationShowsWhatWasWrong checks that a violation shows what was wrong and where: the command's index, and the
// wrong address or the command's own bytes.
func TestAViolationShowsWhatWasWrong(t *testing.T) {
	const outside = 1 << 50
	for _, tt := range []struct {
		clause abi.Clause
		op     abi.AdminOp
		params func(o *offender) interface{ Marshal([]byte) }
		bytes  func(o *offender) uint64 // the wrong address; nil: the command
	}{
		{
			abi.DRV403, abi.AdminOpRegMR,
			func(o *offender) interface{ Marshal([]byte) } {
				return &abi.RegMR{PDN: o.pdn, Length: 4096, Pages: o.addr(3) + 8, Levels: 1}
			},
			func(o *offender) uint64 { return o.addr(3) + 8 },
		},
		{
			abi.DRV403, abi.AdminOpRegMR, // an entry of the list, found while it is read
			func(o *offender) interface{ Marshal([]byte) } {
				root := o.list(3, 64, 2)
				o.word(int(root-driverBase)+8, 12)
				return &abi.RegMR{PDN: o.pdn, Length: 8192, Pages: root, Levels: 1}
			},
			func(o *offender) uint64 { return o.addr(65)>>32<<32 | 12 },
		},
		{
			abi.DRV403, abi.AdminOpRegMR, // no address is wrong
			func(o *offender) interface{ Marshal([]byte) } {
				return &abi.RegMR{PDN: o.pdn, Length: 4096, Pages: o.addr(3), Levels: 9}
			}, nil,
		},
		{
			abi.DRV401, abi.AdminOpRegMR,
			func(o *offender) interface{ Marshal([]byte) } {
				return &abi.RegMR{PDN: o.pdn, Length: 4096, Pages: outside, Levels: 1}
			},
			func(*offender) uint64 { return outside },
		},
		{
			abi.DRV401, abi.AdminOpRegMR, // a page, found while the list is read
			func(o *offender) interface{ Marshal([]byte) } {
				root := o.list(3, 64, 1)
				binary.LittleEndian.PutUint64(o.mem[root-driverBase:], outside)
				return &abi.RegMR{PDN: o.pdn, Length: 4096, Pages: root, Levels: 1}
			},
			func(*offender) uint64 { return outside },
		},
		{
			abi.DRV401, abi.AdminOpCMConnect,
			func(o *offender) interface{ Marshal([]byte) } {
				o.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: o.qpn, Mask: abi.QPAttrState, State: abi.QPStateReset})
				clear(o.mem[pageSQ*pageSize : (pageSQ+1)*pageSize])
				clear(o.mem[pageRQ*pageSize : (pageRQ+1)*pageSize])
				o.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: o.qpn, Mask: abi.QPAttrState, State: abi.QPStateInit})
				return &abi.CMConnect{QPN: o.qpn, Service: 1, Priv: outside, PrivLen: 8}
			}, nil,
		},
		{
			abi.DRV960, abi.AdminOpCreateQP,
			func(o *offender) interface{ Marshal([]byte) } {
				o.b.Features |= abi.FeatureExtendedVerbs
				return &abi.CreateQP{Type: abi.QPTypeUC, ErrorMode: abi.ErrorModeCompleteInError, PDN: o.pdn, SendCQ: o.cqn, RecvCQ: o.cqn}
			}, nil,
		},
		{
			abi.DRV924, abi.AdminOpCreateQP,
			func(o *offender) interface{ Marshal([]byte) } {
				o.b.Features |= abi.FeatureExtendedVerbs
				return &abi.CreateQP{Type: abi.QPTypeXRCSend, PDN: o.pdn, SendCQ: o.cqn, RecvCQ: o.cqn}
			}, nil,
		},
	} {
		v := newVirtual(t, 1, wire100us)
		o := newOffender(t, v, 0)
		o.setUp()
		params := tt.params(o)
		o.command(tt.op, params)
		all := o.fn.Violations().All()
		if len(all) != 1 || all[0].Clause != uint16(tt.clause) {
			t.Errorf("%s: %+v", tt.clause, all)
			continue
		}
		is := all[0].Violation
		var want [32]byte
		if tt.bytes != nil {
			binary.LittleEndian.PutUint64(want[:], tt.bytes(o))
		} else {
			cmd := abi.AdminCmd{Opcode: tt.op, ID: o.id}
			params.Marshal(cmd.Params[:])
			var raw [abi.AdminCmdSize]byte
			cmd.Marshal(raw[:])
			copy(want[:], raw[:])
		}
		_, _, next, _ := o.fn.AdminQueue()
		if is.Ring != abi.RingAdmin || is.Index != next-1 || is.Count != 1 || is.Bytes != want || is.Length != 8 && tt.bytes != nil {
			t.Errorf("%s: %+v, want index %d, bytes %x", tt.clause, is, next-1, want)
		}
	}
}

// TestEvidenceAfterFault checks that a doorbell that breaks a rule while a registration is being
// read is not assigned to that command.
func TestEvidenceAfterFault(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	o := newOffender(t, v, 0)
	o.enable()
	o.pdn = binary.LittleEndian.Uint32(o.must(abi.AdminOpAllocPD, nil))
	o.driver.post(abi.AdminOpRegMR, o.bigRegion())
	if o.stepOnce(); !o.fn.Registering() {
		t.Fatal("no registration in progress: the test is void")
	}
	o.ring(abi.DoorbellAdmin, 0, o.id+1000)
	o.stepOnce()
	if all := o.fn.Violations().All(); len(all) != 1 || all[0].Clause != 502 || all[0].Index != o.id+1000 || all[0].Length != 4 {
		t.Errorf("%+v", all)
	}
}

// TestReceiveTooLong checks that an entry with more SGEs than its queue was created for is an
// error, and recorded (DRV-608).
func TestReceiveTooLong(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	o, to := newOffender(t, v, 0), newDriver(v, 1, 1)
	o.setUp()
	to.setUp()
	o.connectTo(to, 99)
	o.receiveAs(to, func(entry []byte) { (&abi.RecvWQE{WRID: 5, NumSGE: 2}).Marshal(entry) })
	all := o.fn.Violations().All()
	if len(all) != 1 || all[0].Clause != 608 || all[0].Ring != abi.RingRQ || all[0].Queue != o.qpn || all[0].Index != 0 || all[0].Bytes[0] != 5 {
		t.Errorf("%+v", all)
	}
}

// TestEachForbiddenAccessIsAViolation checks that registers can be read and written only by their access mode, and
// with no more bits than they have (DRV-306, DRV-102).
func TestEachForbiddenAccessIsAViolation(t *testing.T) {
	for i := range abi.Registers {
		r := &abi.Registers[i]
		v := newVirtual(t, 1, wire100us)
		o := newDriver(v, 0, 1)
		o.enable()
		if !r.Readable {
			o.ch.Ask(guest.Request{Kind: guest.RegRead, Tag: 1, Offset: r.Offset, Width: r.Width})
			v.step()
		}
		if !r.Writable {
			o.write(r.Offset, r.Width, 7)
		}
		if !r.Readable || !r.Writable {
			if all := o.fn.Violations().All(); len(all) != 1 || all[0].Clause != 306 || all[0].Index != r.Offset {
				t.Errorf("%s: %+v", r.Name, all)
			}
			o.fn.Violations().Clear()
		}
		if r.Writable && r.Width == 4 {
			o.write(r.Offset, 4, 1<<32)
			if all := o.fn.Violations().All(); len(all) != 1 || all[0].Clause != 102 || all[0].Index != r.Offset {
				t.Errorf("%s: %+v", r.Name, all)
			}
		}
	}
}

// TestAStrictNICFindsBytesThatMustBeZero checks that a strict NIC finds every place where bytes have to be zero
// (DRV-102, DRV-301, DRV-601), and that a NIC that is not strict does not look. (DEV-102)
func TestAStrictNICFindsBytesThatMustBeZero(t *testing.T) {
	for _, tt := range []struct {
		clause abi.Clause
		ring   abi.Ring
		do     func(o *offender, to *driver)
	}{
		{abi.DRV102, abi.RingAdmin, func(o *offender, _ *driver) {
			o.raw(abi.AdminCmd{Opcode: abi.AdminOpQueryQP}, func(p []byte) { p[20] = 1 })
		}},
		{abi.DRV102, abi.RingStream, func(o *offender, _ *driver) {
			o.stream(message(abi.MsgHeartbeat, 4, make([]byte, 8)))
		}},
		{abi.DRV102, abi.RingStream, func(o *offender, _ *driver) {
			d := make([]byte, abi.DoorbellSize)
			(&abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: o.cqn}).Marshal(d)
			d[15] = 1
			o.stream(message(abi.MsgDoorbell, 0, d))
		}},
		{abi.DRV102, abi.RingSQ, func(o *offender, to *driver) {
			o.post(abi.SendWQE{Opcode: abi.OpWrite, NumSGE: 1, RemoteAddr: to.addr(pageData), RKey: to.rkey}, func(b []byte) { b[11] = 1 })
		}},
		{abi.DRV102, abi.RingSQ, func(o *offender, to *driver) {
			o.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: 0x10, NumSGE: 1, RemoteAddr: to.addr(pageData), RKey: to.rkey}, nil)
		}},
		{abi.DRV102, abi.RingRQ, func(o *offender, to *driver) {
			o.receiveAs(to, func(entry []byte) { entry[9] = 1 })
		}},
		{abi.DRV102, abi.RingBells, func(o *offender, _ *driver) {
			o.bellRecord(abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: o.cqn, Flags: 2})
		}},
		{abi.DRV102, abi.RingStream, func(o *offender, _ *driver) {
			d := make([]byte, abi.DoorbellSize)
			(&abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: o.cqn, Flags: 0x80}).Marshal(d)
			o.stream(message(abi.MsgDoorbell, 0, d))
		}},
		{abi.DRV301, abi.RingAdmin, func(o *offender, _ *driver) {
			o.write(abi.RegControl, 4, uint64(abi.ControlReset))
			o.enableDirty()
		}},
		{abi.DRV601, abi.RingSQ, func(o *offender, _ *driver) {
			o.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: o.qpn, Mask: abi.QPAttrState, State: abi.QPStateReset})
			o.word(pageSQ*pageSize, 3)
			o.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: o.qpn, Mask: abi.QPAttrState, State: abi.QPStateInit})
		}},
	} {
		for _, strict := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s in %s, strict %t", tt.clause, tt.ring, strict), func(t *testing.T) {
				v := newVirtualWith(t, 1, wire100us, func(_ int, c *config.Config) { c.NIC.Strict = strict })
				o, to := newOffender(t, v, 0), newDriver(v, 1, 1)
				o.setUp()
				to.setUp()
				o.connectTo(to, 99)
				tt.do(o, to)
				found := slices.ContainsFunc(o.fn.Violations().All(), func(x guest.Violation) bool { return x.Clause == uint16(tt.clause) && x.Ring == tt.ring })
				if found != strict || len(o.fn.Violations().All()) > 1 {
					t.Errorf("%+v", o.fn.Violations().All())
				}
			})
		}
	}
}

// TestPartsOfXRCAreCheckedForXRCOnly checks that a queue pair that cannot be created breaks DRV-924
// only if it is an XRC one with parts that XRC does not have.
func TestPartsOfXRCAreCheckedForXRCOnly(t *testing.T) {
	for _, tt := range []struct {
		is     abi.CreateQP
		status abi.Status
	}{
		{abi.CreateQP{Type: abi.QPTypeRC, Ordering: abi.OrderingUnordered}, abi.StatusInvalidArgument},
		{abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: 1 << 20}, abi.StatusNotFound},
	} {
		v := newVirtual(t, 1, wire100us)
		o := newOffender(t, v, 0)
		o.setUp()
		o.b.Features |= abi.FeatureExtendedVerbs
		if tt.is.Type != abi.QPTypeXRCRecv {
			tt.is.PDN, tt.is.SendCQ, tt.is.RecvCQ = o.pdn, o.cqn, o.cqn
		}
		if got, _ := o.command(abi.AdminOpCreateQP, &tt.is); got != tt.status {
			t.Errorf("%+v: %v, want %v", tt.is, got, tt.status)
		}
		for _, b := range o.fn.Violations().All() {
			if b.Clause == uint16(abi.DRV924) {
				t.Errorf("%+v: %+v", tt.is, b)
			}
		}
	}
}
