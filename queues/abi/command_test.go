package abi

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// random fills a structure or a field of one.
func random(rng *rand.Rand) func(v reflect.Value) {
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		default:
			v.SetUint(rng.Uint64())
		}
	}
	return fill
}

// everything is a driver that may do whatever there is.
var everything = Caller{PF: true, Features: ^uint64(0)}

// TestEachCommandReachesItsMethod: every command reaches the method of its name with the parameters that were sent,
// and its result arrives.
func TestEachCommandReachesItsMethod(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	structs := all()
	for i := range schema.Current.Commands {
		c := &schema.Current.Commands[i]
		for range 20 {
			cmd := AdminCmd{Opcode: AdminOp(c.Code)}
			want := map[string]any{}
			if c.Params != "" {
				p := reflect.New(reflect.TypeOf(structs[c.Params]).Elem())
				random(rng)(p.Elem())
				p.Interface().(layout).Marshal(cmd.Params[:])
				for _, f := range reflect.VisibleFields(p.Elem().Type()) {
					want[f.Name] = p.Elem().FieldByIndex(f.Index).Interface()
				}
			}
			result := make([]byte, len(AdminCQE{}.Result))
			r := &recorder{fill: random(rng)}
			if st := Dispatch(r, everything, &cmd, result); st != StatusOK || r.called != c.Name {
				t.Fatalf("%s: %s, called is %q", c.Name, st, r.called)
			}
			if of := schema.Current.Group(c.Group).Of; of != "" {
				if r.vf != want[of] {
					t.Errorf("%s: VF %d, want %v", c.Name, r.vf, want[of])
				}
				delete(want, of)
			}
			for name, v := range passed(r.args, want) {
				if _, sent := want[name]; sent && want[name] != v {
					t.Errorf("%s: %s is %v, want %v", c.Name, name, v, want[name])
				}
				delete(want, name)
			}
			if len(want) > 0 {
				t.Errorf("%s: %v did not arrive", c.Name, want)
			}
			if c.Result != "" && !c.Long {
				checkResult(t, c, structs[c.Result], r.result, result)
			}
		}
	}
}

// passed is what a method got, by the names of fields. A parameter that comes alone has the one
// name left.
func passed(args []any, want map[string]any) map[string]any {
	got := map[string]any{}
	for _, a := range args {
		if v := reflect.ValueOf(a); v.Kind() == reflect.Pointer {
			for _, f := range reflect.VisibleFields(v.Elem().Type()) {
				got[f.Name] = v.Elem().FieldByIndex(f.Index).Interface()
			}
		} else if len(want) == 1 {
			for name := range want {
				got[name] = a
			}
		}
	}
	return got
}

func checkResult(t *testing.T, c *schema.Command, as layout, gave any, raw []byte) {
	t.Helper()
	v := reflect.New(reflect.TypeOf(as).Elem())
	if v.Elem().NumField() == 1 {
		v.Elem().Field(0).Set(reflect.ValueOf(gave))
	} else {
		v.Elem().Set(reflect.ValueOf(gave))
	}
	want := make([]byte, len(raw))
	v.Interface().(layout).Marshal(want)
	if !bytes.Equal(raw, want) {
		t.Errorf("%s: the result is %x, want %x", c.Name, raw, want)
	}
}

// TestUnknownAndForbiddenCommandsReachNoHandler: which commands reach no handler, and the status
// that each gets.
func TestUnknownAndForbiddenCommandsReachNoHandler(t *testing.T) {
	for op := range AdminOp(1 << 10) {
		i := slices.IndexFunc(schema.Current.Commands, func(c schema.Command) bool { return c.Code == uint64(op) })
		for _, c := range []struct {
			cmd    AdminCmd
			caller Caller
			want   Status
		}{
			{AdminCmd{Opcode: op, Flags: 1}, everything, StatusUnknownCommand}, // reserved bits do not matter (DEV-102)
			{AdminCmd{Opcode: op}, Caller{PF: true}, StatusUnsupported},
			{AdminCmd{Opcode: op}, Caller{Features: ^uint64(0)}, StatusDenied},
			{AdminCmd{Opcode: op}, everything, StatusUnknownCommand},
		} {
			switch {
			case c.want == StatusUnsupported && i >= 0 && slices.ContainsFunc(schema.Current.Commands[i].Needs, func(n schema.Need) bool { return n.Field == "" }):
			case c.want == StatusDenied && i >= 0 && schema.Current.Group(schema.Current.Commands[i].Group).PFOnly:
			case i >= 0:
				c.want = StatusOK
			default:
				c.want = StatusUnknownCommand
			}
			r := &recorder{fill: func(reflect.Value) {}}
			if st := Dispatch(r, c.caller, &c.cmd, make([]byte, len(AdminCQE{}.Result))); st != c.want || (r.called != "") != (st == StatusOK) {
				t.Errorf("%s of %+v: %s, want %s; called is %q", op, c.caller, st, c.want, r.called)
			}
		}
	}
	r := &recorder{status: StatusNotFound}
	if st := Dispatch(r, everything, &AdminCmd{Opcode: AdminOpVFReset}, make([]byte, len(AdminCQE{}.Result))); st != StatusNotFound || r.called != "" {
		t.Errorf("a VF that is not there: %s, called is %q", st, r.called)
	}
}

// TestACommandNeedsTheFeaturesOfItsParameters: values of parameters that are part of a feature.
func TestACommandNeedsTheFeaturesOfItsParameters(t *testing.T) {
	cmd := func(op AdminOp, p layout) *AdminCmd {
		c := &AdminCmd{Opcode: op}
		p.Marshal(c.Params[:])
		return c
	}
	qp := func(p CreateQP) *AdminCmd { return cmd(AdminOpCreateQP, &p) }
	for _, c := range []struct {
		cmd  *AdminCmd
		need uint64
	}{
		{qp(CreateQP{Type: QPTypeRC}), 0},
		{qp(CreateQP{Type: QPTypeUD}), FeatureDatagrams},
		{qp(CreateQP{Type: QPTypeGSI}), FeatureDatagrams},
		{qp(CreateQP{Type: QPTypeXRCSend}), FeatureExtendedVerbs},
		{qp(CreateQP{Type: QPTypeXRCRecv}), FeatureExtendedVerbs},
		{qp(CreateQP{Type: QPTypeRC, Ordering: OrderingWeak}), FeatureExtendedVerbs},
		{qp(CreateQP{Type: QPTypeRC, ErrorMode: 9}), FeatureExtendedVerbs},
		{qp(CreateQP{Type: QPTypeUD, Ordering: OrderingWeak}), FeatureDatagrams | FeatureExtendedVerbs},
		{cmd(AdminOpCreateCQ, &CreateCQ{Vector: 1}), 0},
		{cmd(AdminOpModifyCQ, &ModifyCQ{}), FeatureExtendedVerbs},
		{cmd(AdminOpDestroyAH, &DestroyAH{}), FeatureDatagrams},
	} {
		if (Caller{Features: c.need}).lacks(c.cmd) {
			t.Errorf("%+v needs more than %#x", c.cmd, c.need)
		}
		for bit := uint64(1); bit != 0; bit <<= 1 {
			if c.need&bit != 0 && !(Caller{Features: c.need &^ bit}).lacks(c.cmd) {
				t.Errorf("%+v does not need %#x", c.cmd, bit)
			}
		}
	}
}

// TestAStatusTellsWhichClausesWereBroken: what a command and its status say of its driver (DRV-102, DRV-103, DRV-401, DRV-902,
// DRV-911).
func TestAStatusTellsWhichClausesWereBroken(t *testing.T) {
	vector := &AdminCmd{Opcode: AdminOpCreateCQ}
	(&CreateCQ{Vector: 1}).Marshal(vector.Params[:])
	for _, c := range []struct {
		caller Caller
		cmd    *AdminCmd
		st     Status
		want   []Clause
	}{
		{everything, &AdminCmd{Opcode: AdminOpRegMR}, StatusOK, nil},
		{everything, &AdminCmd{Opcode: AdminOpRegMR}, StatusInvalidArgument, nil},
		{everything, &AdminCmd{Opcode: AdminOpRegMR}, StatusMemoryFault, []Clause{DRV401}},
		{everything, &AdminCmd{Opcode: AdminOpRegMR, Flags: 1}, StatusOK, nil},                    // not strict
		{everything, &AdminCmd{Opcode: AdminOpAllocPD, Params: [120]byte{119: 1}}, StatusOK, nil}, // not strict
		{Caller{}, &AdminCmd{Opcode: AdminOpResizeCQ}, StatusUnsupported, []Clause{DRV103}},
		{Caller{}, vector, StatusInvalidArgument, []Clause{DRV103}},
		{everything, vector, StatusInvalidArgument, nil},
		{everything, &AdminCmd{Opcode: AdminOpCMConnect}, StatusDenied, []Clause{DRV911}},
		{everything, &AdminCmd{Opcode: AdminOpCMConnect}, StatusBadState, []Clause{DRV902}},
		{everything, &AdminCmd{Opcode: AdminOpCMAccept}, StatusBadState, []Clause{DRV902}},
		{everything, &AdminCmd{Opcode: AdminOpCMListen}, StatusDenied, []Clause{DRV911}},
		{everything, &AdminCmd{Opcode: AdminOpModifyQP}, StatusBadState, nil},
		{everything, &AdminCmd{Opcode: AdminOpSetVF}, StatusDenied, nil},
	} {
		if got := c.caller.Broken(c.cmd, c.st, false); !slices.Equal(got, c.want) {
			t.Errorf("%s in %s: %v, want %v", c.cmd.Opcode, c.st, got, c.want)
		}
	}
}

// TestBitsWithoutANameAreReserved sets every bit of every structure, one by one: those that no row of the reference
// names are reserved, and no others (DRV-102).
func TestBitsWithoutANameAreReserved(t *testing.T) {
	for name, l := range all() {
		s := schema.Current.Struct(name)
		in := l.(interface{ Reserved(b []byte) bool })
		for bit := range 8 * s.Size {
			b := make([]byte, s.Size)
			if in.Reserved(b) {
				t.Fatalf("%s: zeros are reserved", name)
			}
			b[bit/8] = 1 << (bit % 8)
			if got, want := in.Reserved(b), unnamed(s, l, b, bit); got != want {
				t.Errorf("%s: bit %d of byte %d is reserved: %t, want %t", name, bit%8, bit/8, got, want)
			}
		}
	}
}

// unnamed reports whether bit, the only one that is set in b, has no meaning: encoding drops it, or
// it is none of its field's.
func unnamed(s *schema.Struct, l layout, b []byte, bit int) bool {
	again := make([]byte, len(b))
	l.Unmarshal(b)
	l.Marshal(again)
	if !bytes.Equal(again, b) {
		return true
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		at := bit - 8*f.Offset
		if at < 0 || at >= 8*f.Size() {
			continue
		}
		set := schema.Current.FlagSet(f.Flags)
		return f.Zero || f.Where.Field != "" || set != nil && !set.Open && !slices.ContainsFunc(set.Values, func(v schema.Value) bool { return v.Value == 1<<at })
	}
	return true
}

func TestFlagsOfADoorbellAreForArmingOnly(t *testing.T) {
	for kind := range DoorbellKind(8) {
		b := make([]byte, DoorbellSize)
		(&Doorbell{Kind: kind, Flags: ArmSolicitedOnly}).Marshal(b)
		if got := (*Doorbell)(nil).Reserved(b); got != (kind != DoorbellCQArm) {
			t.Errorf("solicited only of %s is reserved: %t", kind, got)
		}
	}
}

// TestParametersWithoutANameAreReserved does the same with the parameters of every command, all 56 bytes.
func TestParametersWithoutANameAreReserved(t *testing.T) {
	structs := all()
	for i := range schema.Current.Commands {
		c := &schema.Current.Commands[i]
		for bit := range 8 * len(AdminCmd{}.Params) {
			cmd := AdminCmd{Opcode: AdminOp(c.Code)}
			if cmd.ReservedParams() {
				t.Fatalf("%s: zeros are reserved", c.Name)
			}
			cmd.Params[bit/8] = 1 << (bit % 8)
			want := true
			if s := schema.Current.Struct(c.Params); s != nil && bit/8 < s.Size {
				want = unnamed(s, structs[s.Name], bytes.Clone(cmd.Params[:s.Size]), bit)
			}
			if got := cmd.ReservedParams(); got != want {
				t.Errorf("%s: bit %d of byte %d is reserved: %t, want %t", c.Name, bit%8, bit/8, got, want)
			}
			if got := slices.Contains(everything.Broken(&cmd, StatusOK, true), DRV102); got != want {
				t.Errorf("%s: bit %d of byte %d breaks DRV-102: %t, want %t", c.Name, bit%8, bit/8, got, want)
			}
		}
	}
	unknown := AdminCmd{Opcode: 1000, Params: [120]byte{119: 1}}
	if unknown.ReservedParams() {
		t.Error("a command that is not defined has reserved parameters")
	}
}

// TestACommandReadsOneListEntryForEachPage: how many entries of page lists a command has read at
// once: one for each page of its queues' areas, with their headers. Areas larger than any are not
// read.
func TestACommandReadsOneListEntryForEachPage(t *testing.T) {
	cmd := func(op AdminOp, p layout) *AdminCmd {
		c := &AdminCmd{Opcode: op}
		p.Marshal(c.Params[:])
		return c
	}
	cq := func(log2 uint8) *AdminCmd { return cmd(AdminOpCreateCQ, &CreateCQ{Log2Entries: log2}) }
	qp := func(sq, sqStride, rq, rqStride uint8) *AdminCmd {
		return cmd(AdminOpCreateQP, &CreateQP{SQLog2Entries: sq, SQLog2Stride: sqStride, RQLog2Entries: rq, RQLog2Stride: rqStride})
	}
	for name, c := range map[string]struct {
		cmd  *AdminCmd
		want int
	}{
		"no queue":                   {&AdminCmd{Opcode: AdminOpAllocPD}, 1},
		"32 entries of 64 bytes":     {cq(5), 1},
		"64 entries, and the header": {cq(6), 2},
		"most entries":               {cq(18), 1<<(18+6-12) + 1},
		"largest queue of entries":   {cq(24), 1<<(24+6-12) + 1},
		"a larger one":               {cq(25), 0},
		"no number":                  {cq(255), 0},
		"two queues":                 {qp(6, 7, 5, 6), 3 + 1},
		"largest of both":            {qp(18, 12, 18, 12), 2 * (1<<18 + 1)},
		"one too large":              {qp(18, 13, 5, 6), 1},
		"no number of either":        {qp(255, 255, 31, 1), 0},
	} {
		if got := c.cmd.Pages(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
