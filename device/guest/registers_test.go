package guest

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestRegistersShowWhatTheFunctionIs checks that the registers show what the function is, what it
// may have and what it has.
func TestRegistersShowWhatTheFunctionIs(t *testing.T) {
	f, h := newDevice(t, 0x01_1000)
	var l verbs.Limits
	l.Objects[abi.ObjectQP], l.Objects[abi.ObjectCQ], l.Objects[abi.ObjectMR], l.Objects[abi.ObjectPD] = 21, 22, 23, 24
	l.SGEs, l.Inline, l.QPEntries, l.CQEntries, l.ReadAtomic = 25, 26, 27, 28, 29
	f.Adopt(0, Settings{Limits: l, Window: queues.Window{Addr: 0x10000, Size: 0x20000}, MaxTxRate: 5000})
	f.set.now, h.possible, h.enabled = 12345, 9, 4
	if err := f.Credits.Guarantee(credit.Cost{1, 2, 3, 4, 5, 6, 7, 8}); err != nil {
		t.Fatal(err)
	}
	if !f.Credits.Take(&credit.Cost{1, 0, 2, 0, 3, 0, 4, 0}) {
		t.Fatal("no credits")
	}
	gid := f.GID()
	want := map[uint32]uint64{
		abi.RegMagic: abi.Magic, abi.RegVersion: abi.VersionMajor<<16 | abi.VersionMinor, abi.RegFeatures: Features, abi.RegFunction: 0x01_1000,
		abi.RegFunctionType: uint64(abi.FunctionPF), abi.RegState: uint64(abi.StateReset), abi.RegFault: 0, abi.RegMAC: 0x01_00_01_4e_56_02,
		abi.RegTenant: 7, abi.RegMTU: 4096, abi.RegGIDHi: binary.BigEndian.Uint64(gid[:8]), abi.RegGIDLo: binary.BigEndian.Uint64(gid[8:]),
		abi.RegDMAWindow: 0x10000, abi.RegDMAWindowLength: 0x20000, abi.RegMaxQP: 21, abi.RegMaxCQ: 22, abi.RegMaxMR: 23, abi.RegMaxPD: 24,
		abi.RegMaxSGE: 25, abi.RegMaxInline: 26, abi.RegMaxQPEntries: 27, abi.RegMaxCQEntries: 28, abi.RegMaxReadAtomic: 29,
		abi.RegLinkUp: 0, abi.RegMaxTxRate: 5000, abi.RegSpeed: 5000, abi.RegClock: 12345, abi.RegTotalVF: 9, abi.RegNumVF: 4,
	}
	for i := range uint64(credit.NumCounters) {
		want[abi.RegCreditLimitReqPktTx+4*uint32(i)] = 11 + i
		want[abi.RegCreditGuaranteeReqPktTx+4*uint32(i)] = 1 + i
		want[abi.RegCreditInUseReqPktTx+4*uint32(i)] = []uint64{1, 0, 2, 0, 3, 0, 4, 0}[i]
	}
	for offset, v := range want {
		r := abi.LookupRegister(offset)
		if got, st := f.Registers().Read(offset, r.Width); st != abi.StatusOK || got != v {
			t.Errorf("register %#x: %#x, %v; want %#x", offset, got, st, v)
		}
		if _, st := f.Registers().Read(offset, 12-r.Width); st != abi.StatusInvalidArgument {
			t.Errorf("register %#x in another width: %v", offset, st)
		}
	}
	for i := range abi.Registers { // the test covers every read-only register
		if r := &abi.Registers[i]; r.Readable && !r.Writable {
			if _, told := want[r.Offset]; !told {
				t.Errorf("register %#x is not tried", r.Offset)
			}
		}
	}
	if _, st := f.Registers().Read(abi.RegControl, 4); st != abi.StatusDenied {
		t.Errorf("a register that can only be written: %v", st)
	}
	if _, st := f.Registers().Read(0x9000, 4); st != abi.StatusNotFound {
		t.Errorf("no register: %v", st)
	}
	value := func(offset uint32, want uint64) {
		t.Helper()
		if v := f.Registers().Value(offset); v != want {
			t.Errorf("register %#x: %d, want %d", offset, v, want)
		}
	}
	f.LinkUp = true
	value(abi.RegLinkUp, 1)
	for _, c := range []struct{ rate, told, speed uint64 }{
		{0, 0, 100_000}, {1, 1, 1}, {99_999, 99_999, 99_999}, {100_001, 100_001, 100_000}, {1<<32 - 1, 1<<32 - 1, 100_000}, {1 << 32, 1<<32 - 1, 100_000},
	} {
		f.Adopt(0, Settings{MaxTxRate: c.rate})
		value(abi.RegMaxTxRate, c.told)
		value(abi.RegSpeed, c.speed)
	}
	f.Addr = netip.Addr{}
	value(abi.RegGIDHi, 0)
	value(abi.RegGIDLo, 0)
	vf, _ := newDevice(t, 0x01_1003)
	if v := vf.Registers().Value(abi.RegFunctionType); v != uint64(abi.FunctionVF) {
		t.Errorf("a VF is of type %d", v)
	}
}

// TestTheRateIsSetInMegabits checks that the transmit rate is set in megabits and applied in bytes.
func TestTheRateIsSetInMegabits(t *testing.T) {
	f, _ := newDevice(t, 0x01_1001)
	for mbits, want := range map[uint64]uint64{0: 0, 8: 1_000_000, 1: 125_000, 100_000: 12_500_000_000} {
		if f.Adopt(0, Settings{MaxTxRate: mbits}); f.Rate.Rate() != want {
			t.Errorf("%d Mbit/s: %d bytes per second, want %d", mbits, f.Rate.Rate(), want)
		}
	}
}

// TestARegisterTakesOnlyValidValues checks that a register takes only valid values, and only in the
// right state.
func TestARegisterTakesOnlyValidValues(t *testing.T) {
	f, _ := newDevice(t, 0x01_1001)
	r := f.Registers()
	for _, c := range []struct {
		offset, width uint32
		v             uint64
		want          abi.Status
		reads         uint64
	}{
		{abi.RegAdminSQ, 8, 1 << 40, abi.StatusOK, 1 << 40},
		{abi.RegAdminSQ, 8, abi.PageSize + 1, abi.StatusInvalidArgument, 1 << 40},
		{abi.RegAdminSQ, 4, abi.PageSize, abi.StatusInvalidArgument, 1 << 40},
		{abi.RegAdminSQ, 8, abi.PageSize, abi.StatusOK, abi.PageSize},
		{abi.RegAdminCQ, 8, 2 * abi.PageSize, abi.StatusOK, 2 * abi.PageSize},
		{abi.RegAdminCQ, 8, abi.PageSize - 1, abi.StatusInvalidArgument, 2 * abi.PageSize},
		{abi.RegAdminSQ, 8, 0, abi.StatusOK, 0},
		{abi.RegAdminEntries, 4, 0, abi.StatusInvalidArgument, 0},
		{abi.RegAdminEntries, 4, 1, abi.StatusInvalidArgument, 0},
		{abi.RegAdminEntries, 4, 2, abi.StatusOK, 2},
		{abi.RegAdminEntries, 4, 3, abi.StatusInvalidArgument, 2},
		{abi.RegAdminEntries, 4, 4, abi.StatusOK, 4},
		{abi.RegAdminEntries, 4, 6, abi.StatusInvalidArgument, 4},
		{abi.RegAdminEntries, 4, abi.MaxAdminEntries, abi.StatusOK, abi.MaxAdminEntries},
		{abi.RegAdminEntries, 4, 2 * abi.MaxAdminEntries, abi.StatusInvalidArgument, abi.MaxAdminEntries},
		{abi.RegAdminEntries, 4, 1<<32 | 2, abi.StatusInvalidArgument, abi.MaxAdminEntries},
		{abi.RegAdminEntries, 8, 2, abi.StatusInvalidArgument, abi.MaxAdminEntries},
		{abi.RegMTU, 4, 256, abi.StatusDenied, 4096},
		{0x9000, 4, 0, abi.StatusNotFound, 0},
	} {
		if st := r.Write(0, c.offset, c.width, c.v); st != c.want {
			t.Errorf("register %#x: %#x is %v, want %v", c.offset, c.v, st, c.want)
		}
		if v := r.Value(c.offset); v != c.reads {
			t.Errorf("register %#x: reads %#x after %#x was written, want %#x", c.offset, v, c.v, c.reads)
		}
	}
	for _, c := range []struct {
		v    uint64
		want abi.Status
	}{{0, abi.StatusInvalidArgument}, {3, abi.StatusInvalidArgument}, {1 << 32, abi.StatusInvalidArgument}, {2, abi.StatusOK}} {
		if st := r.Write(0, abi.RegControl, 4, c.v); st != c.want {
			t.Errorf("control %#x: %v, want %v", c.v, st, c.want)
		}
	}
	if v := r.Value(abi.RegAdminEntries); v != 0 {
		t.Errorf("%d entries after a reset", v)
	}
}
