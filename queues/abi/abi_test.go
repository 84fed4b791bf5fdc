package abi

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// layout is a structure with fixed bytes.
type layout interface {
	Size() int
	Marshal(b []byte)
	Unmarshal(b []byte)
}

// all lists every structure, by name.
func all() map[string]layout {
	list := []layout{
		&MsgHeader{}, &Hello{}, &HelloReply{}, &RegRead{}, &RegWrite{}, &RegReply{}, &Doorbell{}, &AsyncEvent{}, &Heartbeat{}, &ErrorMsg{},
		&AdminCmd{}, &AdminCQE{}, &QueryDeviceResult{}, &GIDEntry{}, &AllocMR{}, &FastReg{}, &GIDIndex{}, &DatagramWQE{}, &QueryObjects{}, &ObjectCounts{}, &SetVFObjects{}, &QueryVFObjects{}, &AllocPDResult{}, &DeallocPD{}, &RegMR{}, &RegMRResult{}, &DeregMR{},
		&CreateCQ{}, &CreateCQResult{}, &DestroyCQ{}, &CreateQP{}, &CreateQPResult{}, &ModifyQP{}, &QueryQP{}, &QueryQPResult{}, &DestroyQP{},
		&ResizeCQ{}, &ModifyCQ{}, &AllocMW{}, &AllocMWResult{}, &DeallocMW{}, &ReregMR{}, &BindMW{}, &CreateAH{}, &CreateAHResult{}, &DestroyAH{}, &CreateSRQ{}, &CreateSRQResult{}, &ModifySRQ{}, &ModifySRQResult{}, &QuerySRQ{}, &QuerySRQResult{}, &DestroySRQ{}, &OpenXRCDResult{}, &CloseXRCD{},
		&CMListen{}, &CMUnlisten{}, &CMConnect{}, &CMConnectResult{}, &CMAccept{}, &CMReject{}, &CMDisconnect{},
		&QueryMemory{}, &QueryMemoryResult{}, &QueryViolation{}, &Violation{}, &QueryCounters{}, &Counters{}, &Mcast{},
		&VFNumber{}, &SetVF{}, &SetVFWindow{}, &SetVFCredits{}, &QueryVFCredits{}, &QueryVFResult{}, &CreditCounts{},
		&SendWQE{}, &AtomicMasks{}, &RecvWQE{}, &SGE{}, &CQE{}, &WindowHeader{}, &Capability{}, &WindowEvent{},
	}
	m := make(map[string]layout)
	for _, l := range list {
		m[reflect.TypeOf(l).Elem().Name()] = l
	}
	return m
}

func TestEveryStructureHasTheSizeOfTheSchema(t *testing.T) {
	have := all()
	for _, s := range schema.Current.Structs() {
		l, ok := have[s.Name]
		if s.OffsetsOnly {
			continue
		}
		if !ok {
			t.Errorf("%s: not in the tests", s.Name)
			continue
		}
		if l.Size() != s.Size {
			t.Errorf("%s: size %d, schema %d", s.Name, l.Size(), s.Size)
		}
	}
}

// TestEachFieldIsWhereTheSchemaSays sets one field at a time and finds its bytes where the schema
// says, and nowhere else.
func TestEachFieldIsWhereTheSchemaSays(t *testing.T) {
	for name, l := range all() {
		s := schema.Current.Struct(name)
		for i := range s.Fields {
			f := &s.Fields[i]
			v := reflect.New(reflect.TypeOf(l).Elem())
			want := make([]byte, s.Size)
			fv := v.Elem().FieldByName(f.Name)
			if !fv.IsValid() {
				t.Fatalf("%s lacks %s", name, f.Name)
			}
			for j := range f.Size() {
				want[f.Offset+j] = byte(0xa0 + j)
			}
			if f.Kind == schema.Bytes {
				reflect.Copy(fv, reflect.ValueOf(want[f.Offset:f.Offset+f.Size()]))
			} else {
				var n uint64
				for j := range f.Size() {
					n |= uint64(0xa0+j) << (8 * j)
				}
				fv.SetUint(n)
			}
			got := bytes.Repeat([]byte{0xff}, s.Size) // reserved bytes must be cleared
			v.Interface().(layout).Marshal(got)
			if !bytes.Equal(got, want) {
				t.Errorf("%s.%s:\n got %x\nwant %x", name, f.Name, got, want)
			}
			back := reflect.New(reflect.TypeOf(l).Elem()).Interface().(layout)
			back.Unmarshal(got)
			if d := cmp.Diff(v.Interface(), back); d != "" {
				t.Errorf("%s.%s: %s", name, f.Name, d)
			}
		}
	}
}

// TestOffsetsAreThoseDriversRelyOn pins what drivers are written against, apart from the
// schema: the descriptors' offsets as the documents give them.
func TestOffsetsAreThoseDriversRelyOn(t *testing.T) {
	at := func(s, f string) int {
		for _, x := range schema.Current.Struct(s).Fields {
			if x.Name == f {
				return x.Offset
			}
		}
		t.Fatalf("no %s.%s", s, f)
		return -1
	}
	for _, c := range []struct {
		s, f string
		want int
	}{
		{"SendWQE", "WRID", 0},
		{"SendWQE", "Opcode", 8},
		{"SendWQE", "Flags", 9},
		{"SendWQE", "NumSGE", 10},
		{"SendWQE", "Imm", 12},
		{"SendWQE", "RemoteAddr", 16},
		{"SendWQE", "RKey", 24},
		{"SendWQE", "InlineLen", 48},
		{"SendWQE", "RemoteSRQN", 28},
		{"SendWQE", "CompareAdd", 32},
		{"SendWQE", "Swap", 40},
		{"SendWQE", "AHN", 60},
		{"DatagramWQE", "DGID", 16},
		{"DatagramWQE", "SGIDIndex", 47},
		{"DatagramWQE", "RemoteQPN", 52},
		{"ModifyQP", "DGID", 40},
		{"ModifyQP", "SGIDIndex", 71},
		{"SendWQE", "RemoteQPN", 52},
		{"SendWQE", "RemoteQKey", 56},
		{"CQE", "WRID", 0},
		{"CQE", "ByteLen", 8},
		{"CQE", "Imm", 12},
		{"CQE", "QPN", 16},
		{"CQE", "SrcQP", 20},
		{"CQE", "VendorErr", 24},
		{"CQE", "Status", 28},
		{"CQE", "Opcode", 29},
		{"CQE", "Flags", 30},
		{"CQE", "SL", 31},
		{"CQE", "PKeyIndex", 32},
		{"CQE", "SRQN", 40},
		{"CQE", "Timestamp", 48},
		{"CQE", "Tail", CQETailOffset},
		{"AdminCQE", "Tail", AdminCQETailOffset},
		{"SGE", "Length", 8},
		{"SGE", "LKey", 12},
		{"Doorbell", "Queue", 4},
		{"Doorbell", "Index", 8},
		{"AsyncEvent", "Priv", 48},
	} {
		if got := at(c.s, c.f); got != c.want {
			t.Errorf("%s.%s at %d, want %d", c.s, c.f, got, c.want)
		}
	}
	for _, c := range [][2]int{
		{SendWQESize, SendWQEHeader},
		{RecvWQESize, RecvWQEHeader},
		{SGESize, 16},
		{CQESize, 64},
		{AdminCmdSize, 128},
		{AdminCQESize, 128},
		{len(AdminCmd{}.Params), 120},
		{len(AdminCQE{}.Result), 112},
		{DoorbellSize, 16},
		{AsyncEventSize, 128},
		{QueueHeaderProducer, 0},
		{QueueHeaderConsumer, 64},
		{QueueHeaderEventIndex, 68},
		{CQHeaderConsumer, 0},
		{CQHeaderProducer, 64},
	} {
		if c[0] != c[1] {
			t.Errorf("%d, want %d", c[0], c[1])
		}
	}
	if b := []byte("VNIC"); uint32(b[0])|uint32(b[1])<<8|uint32(b[2])<<16|uint32(b[3])<<24 != Magic {
		t.Errorf("Magic %#x", Magic)
	}
}

func TestEachRegisterIsFoundAtItsOffset(t *testing.T) {
	for i := range Registers {
		r := &Registers[i]
		if LookupRegister(r.Offset) != r {
			t.Errorf("%s not found", r.Name)
		}
		if LookupRegister(r.Offset+1) != nil {
			t.Errorf("%s found at its second byte", r.Name)
		}
		if !r.Readable && !r.Writable {
			t.Errorf("%s cannot be accessed", r.Name)
		}
	}
	if r := LookupRegister(RegControl); r == nil || r.Readable || !r.Writable || r.Width != 4 {
		t.Errorf("RegControl: %+v", r)
	}
	if LookupRegister(0xffffffff) != nil {
		t.Error("register at the end of the space")
	}
}

// TestStructuresKeepTheirValuesWhenEncoded checks decode∘encode on random bytes.
func TestStructuresKeepTheirValuesWhenEncoded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, l := range all() {
		for range 100 {
			b := make([]byte, l.Size())
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			roundTrip(t, name, l, b)
		}
	}
}

func roundTrip(t *testing.T, name string, l layout, b []byte) {
	t.Helper()
	l.Unmarshal(b)
	once := make([]byte, l.Size())
	l.Marshal(once)
	fresh := reflect.New(reflect.TypeOf(l).Elem()).Interface().(layout)
	fresh.Unmarshal(once)
	if d := cmp.Diff(l, fresh); d != "" {
		t.Errorf("%s: %s", name, d)
	}
	twice := make([]byte, l.Size())
	fresh.Marshal(twice)
	if !bytes.Equal(once, twice) {
		t.Errorf("%s: %x, then %x", name, once, twice)
	}
}

func FuzzUnmarshal(f *testing.F) {
	list := all()
	for _, l := range list {
		b := make([]byte, l.Size())
		l.Marshal(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, l := range all() {
			if m, ok := l.(Message); ok {
				if err := Decode(b, m); (err == nil) != (len(b) >= l.Size()) {
					t.Fatalf("%s: %d bytes: %v", name, len(b), err)
				}
			}
			if len(b) >= l.Size() {
				roundTrip(t, name, l, b[:l.Size()])
			}
		}
	})
}

func TestCodecsDoNotAllocate(t *testing.T) {
	var wqe SendWQE
	var cqe CQE
	var cmd AdminCmd
	b := make([]byte, 128)
	if n := testing.AllocsPerRun(100, func() {
		wqe.Unmarshal(b)
		wqe.Marshal(b)
		cqe.Unmarshal(b)
		cqe.Marshal(b)
		cmd.Unmarshal(b)
		cmd.Marshal(b)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// codes makes a value of every enum from its number.
var codes = map[string]func(n uint64) fmt.Stringer{
	"State":        func(n uint64) fmt.Stringer { return State(n) },
	"Fault":        func(n uint64) fmt.Stringer { return Fault(n) },
	"Status":       func(n uint64) fmt.Stringer { return Status(n) },
	"FunctionType": func(n uint64) fmt.Stringer { return FunctionType(n) },
	"Control":      func(n uint64) fmt.Stringer { return Control(n) },
	"DoorbellKind": func(n uint64) fmt.Stringer { return DoorbellKind(n) },
	"EventType":    func(n uint64) fmt.Stringer { return EventType(n) },
	"Opcode":       func(n uint64) fmt.Stringer { return Opcode(n) },
	"QPType":       func(n uint64) fmt.Stringer { return QPType(n) },
	"QPState":      func(n uint64) fmt.Stringer { return QPState(n) },
	"PathMTU":      func(n uint64) fmt.Stringer { return PathMTU(n) },
	"WCStatus":     func(n uint64) fmt.Stringer { return WCStatus(n) },
	"WCOpcode":     func(n uint64) fmt.Stringer { return WCOpcode(n) },
	"MsgType":      func(n uint64) fmt.Stringer { return MsgType(n) },
	"CapType":      func(n uint64) fmt.Stringer { return CapType(n) },
	"Counter":      func(n uint64) fmt.Stringer { return Counter(n) },
	"Ring":         func(n uint64) fmt.Stringer { return Ring(n) },
	"Link":         func(n uint64) fmt.Stringer { return Link(n) },
	"CreditPart":   func(n uint64) fmt.Stringer { return CreditPart(n) },
	"Ordering":     func(n uint64) fmt.Stringer { return Ordering(n) },
	"ErrorMode":    func(n uint64) fmt.Stringer { return ErrorMode(n) },
	"MWType":       func(n uint64) fmt.Stringer { return MWType(n) },
	"SRQType":      func(n uint64) fmt.Stringer { return SRQType(n) },
	"AdminOp":      func(n uint64) fmt.Stringer { return AdminOp(n) },
}

// TestEveryCodeHasItsName checks that every code has its name and others show a number.
func TestEveryCodeHasItsName(t *testing.T) {
	for _, e := range schema.Current.Enums {
		code := codes[e.Name]
		if code == nil {
			t.Errorf("%s: not in the tests", e.Name)
			continue
		}
		for _, v := range e.Values {
			if got := code(v.Value).String(); got != v.Text {
				t.Errorf("%s %d: %q, want %q", e.Name, v.Value, got, v.Text)
			}
		}
		if got, want := code(99).String(), e.Name+"(99)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, c := range []struct {
		got  fmt.Stringer
		want string
	}{{StatusOK, "ok"}, {WCSuccess, "success"}, {OpSend, "SEND"}, {MsgHello, "Hello"}, {AdminOpRegMR, "RegMR"}} {
		if c.got.String() != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestNumbersAreThoseOfVerbs pins the numbers that verbs programs rely on.
func TestNumbersAreThoseOfVerbs(t *testing.T) {
	for _, c := range [][2]int{
		{int(OpWrite), 0},
		{int(OpSendInv), 9},
		{int(OpFetchAdd), 6},
		{int(QPTypeRC), 2},
		{int(QPStateRTS), 3},
		{int(QPStateErr), 6},
		{int(WCWRFlushErr), 5},
		{int(WCRemAccessErr), 10},
		{int(WCRNRRetryExcErr), 13},
		{int(WCGeneralErr), 21},
		{int(WCOpRecv), 128},
		{int(WCOpRecvWriteImm), 129},
		{int(WCOpFetchAdd), 4},
		{AccessRemoteAtomic, 8},
		{AccessRelaxedOrdering, 1 << 20},
		{QPAttrMaxDestRdAtomic, 1 << 17},
		{QPAttrMinRNRTimer, 1 << 15},
		{WCFlagInv, 8},
		{int(MTU1024), 3},
	} {
		if c[0] != c[1] {
			t.Errorf("%d, want %d", c[0], c[1])
		}
	}
}

func TestPathMTUsAreConvertedToBytesAndBack(t *testing.T) {
	for n, want := range map[int]PathMTU{-1: 0, 0: 0, 255: 0, 256: MTU256, 1500: MTU1024, 4095: MTU2048, 4096: MTU4096, 1 << 20: MTU4096} {
		if got := PathMTUFor(n); got != want {
			t.Errorf("PathMTUFor(%d) = %v, want %v", n, got, want)
		}
	}
	for m, want := range map[PathMTU]int{0: 0, MTU256: 256, MTU4096: 4096, 6: 0, 255: 0} {
		if got := m.Bytes(); got != want {
			t.Errorf("%v: %d bytes, want %d", m, got, want)
		}
	}
}

func TestATextIsCutAndMadePrintable(t *testing.T) {
	for _, c := range []struct {
		in   string
		size int
		out  string
	}{
		{"abc", 5, "abc"},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"aéé", 4, "aé"},
		{"", 4, ""},
		{"the quick brown fox jumps", 20, "the quick brown..."},
		{"the quick brown, fox jumps", 19, "the quick brown..."},
		{"aaaaaaaaaaaaaaaaaaaaaaaaa", 20, "aaaaaaaaaaaaaaaaa..."},
		{"ééééééééééé", 20, "éééééééé..."},
		{"a\nb\x1b", 8, "a\ufffdb\ufffd"},
	} {
		b := bytes.Repeat([]byte{'x'}, c.size)
		PutText(b, c.in)
		if got := Text(b); got != c.out {
			t.Errorf("%q in %d bytes: %q, want %q", c.in, c.size, got, c.out)
		}
	}
	if got := Text([]byte{'a', 0xff, 'b', 0, 'c'}); got != "a\ufffdb" {
		t.Errorf("broken UTF-8: %q", got)
	}
}

// TestAPathMTUIsTheLargestOfSoManyBytes: each path MTU is what its bytes say, and the largest of so
// many bytes or fewer.
func TestAPathMTUIsTheLargestOfSoManyBytes(t *testing.T) {
	bytes := 128
	for m := MTU256; m <= MTU4096; m++ {
		bytes *= 2
		if m.Bytes() != bytes || PathMTUFor(bytes) != m || PathMTUFor(bytes-1) != m-1 || PathMTUFor(bytes+1) != m {
			t.Errorf("%v: %d bytes; of %d bytes %v", m, m.Bytes(), bytes, PathMTUFor(bytes))
		}
	}
	if m := MTU4096 + 1; m.Bytes() != 0 {
		t.Errorf("%d has %d bytes", m, m.Bytes())
	}
}
