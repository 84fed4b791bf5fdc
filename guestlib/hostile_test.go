package guestlib

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// What a broken or hostile device sends ends the use of the device with an error that says what was
// wrong. It never panics the driver.
func TestInvalidMessagesOfTheDeviceEndItsUse(t *testing.T) {
	message := func(typ abi.MsgType, body []byte) []byte { return abi.AppendMessage(nil, typ, 0, body) }
	event := func(e abi.AsyncEvent) []byte { return abi.AppendStruct(nil, 0, &e) }
	length := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	for _, c := range []struct {
		name string
		raw  []byte
		want string // "" means that the device goes on
		is   error
	}{
		{"length 0", append(length(0), make([]byte, 12)...), "too short", ErrDeviceLost},
		{"length 15", append(length(15), make([]byte, 12)...), "too short", ErrDeviceLost},
		{"huge length", bytes.Repeat([]byte{0xff}, 16), "longer than MaxMessage", ErrDeviceLost},
		{"unknown type", message(999, make([]byte, 100)), "", nil},
		{"reply nobody asked for", abi.AppendStruct(nil, 12345, &abi.RegReply{}), "", nil},
		{"short async event", message(abi.MsgAsyncEvent, make([]byte, 127)), "127 of 128 bytes", ErrProtocol},
		{"too much private data", event(abi.AsyncEvent{Type: abi.EventConnectRequest, PrivLen: 65}), "65 bytes of private data", ErrProtocol},
		{"unknown event", event(abi.AsyncEvent{Type: 4711, Number: 3}), "", nil},
		{"request for no listener", event(abi.AsyncEvent{Type: abi.EventConnectRequest, Service: 5, Number: 1}), "", nil},
		{"established, unknown id", event(abi.AsyncEvent{Type: abi.EventEstablished, Number: 12345}), "", nil},
		{"disconnected, unknown id", event(abi.AsyncEvent{Type: abi.EventDisconnected, Number: 12345}), "", nil},
		{"QP fatal, unknown QP", event(abi.AsyncEvent{Type: abi.EventQPFatal, Number: 12345}), "", nil},
		{"CQ error, unknown CQ", event(abi.AsyncEvent{Type: abi.EventCQError, Number: 12345}), "", nil},
		{"odd CQ event", message(abi.MsgCQEvent, make([]byte, 5)), "CQ event of 5 bytes", ErrProtocol},
		{"CQ event, unknown CQ", message(abi.MsgCQEvent, []byte{9, 9, 9, 9}), "", nil},
		{"empty CQ event", message(abi.MsgCQEvent, nil), "", nil},
		{"admin event without completion", message(abi.MsgCQEvent, length(abi.AdminCQ)), "", nil},
		{"error message", abi.AppendStruct(nil, 0, &abi.ErrorMsg{Code: abi.StatusDenied, Reason: [124]byte{'n', 'o', 0x1b, '['}}), "no\ufffd[", ErrDenied},
		{"short error message", message(abi.MsgError, make([]byte, 3)), "3 of 128 bytes", ErrProtocol},
		{"function fault", event(abi.AsyncEvent{Type: abi.EventFunctionFault, Status: uint32(abi.FaultCommand), PrivLen: 3, Priv: [64]byte{'w', 'h', 'y'}}), "why", ErrDeviceLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			nic, url := startNIC(t, nil)
			d, err := Open(testContext(t), url, Options{Memory: 32 << 20, NoRecovery: true}) // what is lost is to stay lost
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			nic.Session(0).Out.Raw(c.raw)
			if c.want == "" {
				if _, err := d.Query(testContext(t)); err != nil {
					t.Fatal(err)
				}
				return
			}
			<-d.Done()
			if err := d.Err(); !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.is) || !errors.Is(err, ErrDeviceLost) {
				t.Errorf("got %v", err)
			}
			if _, err := d.Query(testContext(t)); !errors.Is(err, ErrDeviceLost) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// A program that has the event of a broken CQ finds the CQ broken: a poll that still found nothing
// would be taken for a CQ that waits.
func TestAnEventIsToldAfterItIsTrue(t *testing.T) {
	nic, url := startNIC(t, nil)
	e := newEndpoint(t, openDevice(t, url), QPConfig{})
	e.cq.mu.Lock() // as a program's poll holds it: the device library cannot break the CQ yet
	nic.Session(0).Out.Raw(abi.AppendStruct(nil, 0, &abi.AsyncEvent{Type: abi.EventCQError, Number: e.cq.cqn}))
	select {
	case ev := <-e.dev.Events():
		t.Errorf("%v, while the CQ is whole", ev)
	case <-time.After(50 * time.Millisecond):
	}
	e.cq.mu.Unlock()
	<-e.dev.Events()
	if n, err := e.cq.Poll(make([]WC, 1)); n != 0 || err == nil {
		t.Errorf("%d completions of a broken CQ, %v", n, err)
	}
}

// Completions that match no posted request are an error of the device. Poll reports it, and keeps
// reporting it.
func TestACompletionOfNothingPostedIsAnError(t *testing.T) {
	good := abi.CQE{WRID: 7, Opcode: abi.WCOpRecv}
	for _, c := range []struct {
		name string
		edit func(*abi.CQE)
		want string // "" means that it is taken
	}{
		{"as posted", func(*abi.CQE) {}, ""},
		{"unknown QP", func(e *abi.CQE) { e.QPN = 0xabcdef }, "QP 0xabcdef, which does not complete here"},
		{"work never posted", func(e *abi.CQE) { e.WRID = 8 }, "work request 8, where 7 comes first"},
		{"send, none posted", func(e *abi.CQE) { e.Opcode = abi.WCOpSend }, "SQ: completion of work request 7, which is not outstanding"},
		{"unknown status", func(e *abi.CQE) { e.Status = 200 }, ""},
		{"unknown opcode", func(e *abi.CQE) { e.Opcode = 0xff }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			nic, url := startNIC(t, nil)
			e := newEndpoint(t, openDevice(t, url), QPConfig{})
			if err := e.qp.PostRecv(&RecvWR{ID: 7}); err != nil {
				t.Fatal(err)
			}
			cqe := good
			cqe.QPN = e.qp.Num()
			c.edit(&cqe)
			nic.Session(0).WriteCQE(e.cq.cqn, cqe)
			wc := make([]WC, 2)
			n, err := e.cq.Poll(wc)
			if c.want == "" {
				if n != 1 || err != nil || wc[0].ID != 7 {
					t.Fatalf("%d, %v", n, err)
				}
				return
			}
			if n != 0 || !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%d, %v", n, err)
			}
			if _, again := e.cq.Poll(wc); again == nil {
				t.Error("the CQ recovered")
			}
			if err := e.cq.Wait(testContext(t)); !errors.Is(err, ErrProtocol) {
				t.Errorf("Wait: %v", err)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		nic, url := startNIC(t, nil)
		e := newEndpoint(t, openDevice(t, url), QPConfig{})
		if err := e.qp.PostRecv(&RecvWR{ID: 7}); err != nil {
			t.Fatal(err)
		}
		good.QPN = e.qp.Num()
		nic.Session(0).WriteCQE(e.cq.cqn, good)
		nic.Session(0).WriteCQE(e.cq.cqn, good)
		if n, err := e.cq.Poll(make([]WC, 2)); n != 1 || !errors.Is(err, ErrProtocol) {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// An admin completion for no command ends the device.
func TestHostileAdminCompletion(t *testing.T) {
	nic, url := startNIC(t, nil)
	d := openDevice(t, url)
	s := nic.Session(0)
	s.AdminCQE(abi.AdminCQE{ID: 4711})
	s.Out.CQEvent(abi.AdminCQ)
	<-d.Done()
	if err := d.Err(); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "4711") {
		t.Error(err)
	}
}

// A device that reads nothing, or answers nothing, is lost after a timeout.
func TestASilentDeviceIsLostAfterATimeout(t *testing.T) {
	for _, c := range []struct {
		name string
		drop abi.MsgType
		opts Options
		call func(*Device) error
	}{
		{"hello", abi.MsgHello, Options{CommandTimeout: time.Second}, nil},
		{"register", abi.MsgRegRead, Options{CommandTimeout: time.Second}, nil},
		{"command", abi.MsgDoorbell, Options{CommandTimeout: time.Second}, nil},
		{"heartbeat", abi.MsgHeartbeat, Options{Heartbeat: 5 * time.Millisecond, HeartbeatTimeout: time.Second}, func(d *Device) error {
			<-d.Done()
			return d.Err()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, url := startNIC(t, func(s *fakedev.Server) {
				s.Message = func(_ *fakedev.Session, h abi.MsgHeader, _ []byte) bool { return h.Type != c.drop }
			})
			c.opts.Memory = 1 << 20
			d, err := Open(testContext(t), url, c.opts)
			if c.call != nil {
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				err = c.call(d)
			}
			if !errors.Is(err, ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// If a NIC dies, only the device is lost, and nothing else is affected.
func TestANICThatDiesCostsOnlyItsDevice(t *testing.T) {
	nic, url := startNIC(t, nil)
	a := newEndpoint(t, openDevice(t, url), QPConfig{})
	b := newEndpoint(t, openDevice(t, url), QPConfig{})
	connectPair(t, a, b, 1, "", "")
	waiting := make(chan error, 1)
	go func() { waiting <- a.cq.Wait(testContext(t)) }()
	nic.Close()
	if err := <-waiting; !errors.Is(err, ErrDeviceLost) {
		t.Error(err)
	}
	if _, err := a.cq.Poll(make([]WC, 1)); !errors.Is(err, ErrDeviceLost) {
		t.Error(err)
	}
	if err := a.qp.Destroy(testContext(t)); err != nil {
		t.Error("destroying what is gone:", err)
	}
	if err := a.dev.Close(); err != nil {
		t.Error(err)
	}
}

// If the NIC refuses the memory, or the peer is no NIC, the error says what it answered.
func TestAFailedOpenSaysWhatTheNICAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		answer []byte
		want   string
	}{
		"refused":   {append(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(abi.StatusDenied)), 10), "not sealed"...), "denied: not sealed"},
		"truncated": {[]byte{1, 2, 3}, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				conn.Read(make([]byte, 4096))
				conn.Write(c.answer)
				conn.Close()
			}()
			_, err = Open(testContext(t), "unix://"+path, Options{Memory: 1 << 20})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
			<-done
		})
	}
	if _, err := Open(testContext(t), "unix:///nonexistent/socket", Options{}); err == nil || !strings.Contains(err.Error(), "is the NIC running") {
		t.Error(err)
	}
}

// TestQueriesOfAHostileDeviceEnd: lists that the device gives in parts end, whatever it says of their
// length.
func TestQueriesOfAHostileDeviceEnd(t *testing.T) {
	counters, memory, violations := lengthOf((*Device).Counters), lengthOf((*Device).Memory), lengthOf((*Device).Violations)
	for name, c := range map[string]struct {
		result func(index uint32, out []byte)
		query  func(*Device, context.Context) (int, error)
		want   int // -1: ErrProtocol
	}{
		"no counters":         {func(uint32, []byte) {}, counters, -1},
		"fewer counters":      {func(i uint32, out []byte) { (&abi.Counters{Total: uint16(14 - i)}).Marshal(out) }, counters, -1},
		"violations for ever": {func(uint32, []byte) {}, violations, 64},
		"ranges for ever":     {func(_ uint32, out []byte) { (&abi.QueryMemoryResult{Ranges: 1 << 31}).Marshal(out) }, memory, -1},
		"fewer ranges":        {func(i uint32, out []byte) { (&abi.QueryMemoryResult{Ranges: 3 - i}).Marshal(out) }, memory, 2},
		"the most ranges":     {func(i uint32, out []byte) { (&abi.QueryMemoryResult{Ranges: 65535 - 65534*i}).Marshal(out) }, memory, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var hostile atomic.Bool
			var id, index uint32
			_, url := startNIC(t, func(s *fakedev.Server) {
				s.Message = func(s *fakedev.Session, h abi.MsgHeader, _ []byte) bool {
					if h.Type != abi.MsgDoorbell || !hostile.Load() {
						return true
					}
					id++
					e := abi.AdminCQE{ID: id}
					c.result(index, e.Result[:])
					index++
					s.AdminCQE(e)
					s.Out.CQEvent(abi.AdminCQ)
					return false
				}
			})
			d := openDevice(t, url)
			id = d.admin.Load().id
			hostile.Store(true)
			n, err := c.query(d, testContext(t))
			if c.want < 0 && !errors.Is(err, ErrProtocol) || c.want >= 0 && (n != c.want || err != nil) {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

// lengthOf returns a query that returns only the length of its list.
func lengthOf[T any](query func(*Device, context.Context) ([]T, error)) func(*Device, context.Context) (int, error) {
	return func(d *Device, ctx context.Context) (int, error) {
		list, err := query(d, ctx)
		return len(list), err
	}
}
