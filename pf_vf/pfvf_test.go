package pfvf

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"pgregory.net/rapid"
)

func TestAnIDIsReadAsItIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.Uint32Range(0, MaxHost).Draw(t, "host")
		pf := rapid.Uint32Range(0, MaxPF).Draw(t, "pf")
		vf := rapid.Uint32Range(0, MaxVF).Draw(t, "vf")
		id, err := NewID(host, pf, vf)
		if err != nil {
			t.Fatal(err)
		}
		if id > MaxID || uint32(id.Host()) != host || uint32(id.PF()) != pf || uint32(id.VF()) != vf {
			t.Fatalf("%#x: %d, %d, %d", uint32(id), id.Host(), id.PF(), id.VF())
		}
		if id.IsVF() != (vf != 0) || id.Parent().IsVF() || id.Parent().PF() != id.PF() || id.Parent().Host() != id.Host() {
			t.Fatalf("%s: parent %s", id, id.Parent())
		}
		back, err := ParseID(id.String())
		if err != nil || back != id {
			t.Fatalf("%s became %s, %v", id, back, err)
		}
	})
}

func TestOnlyThisFormIsAnID(t *testing.T) {
	for s, want := range map[string]ID{
		"h1.pf0.vf2":       0x010002,
		"h1.pf0":           0x010000,
		"h1.pf0.vf0":       0x010000,
		"h255.pf15.vf4095": 0xffffff,
		"h0.pf3.vf16":      0x003010,
	} {
		if got, err := ParseID(s); err != nil || got != want {
			t.Errorf("%s: %#x, %v", s, uint32(got), err)
		}
	}
	for _, s := range []string{
		"", "h1", "h1.pf0.vf2.x", "pf0.vf1", "h1.vf1", "h1.pf", "h01.pf0", "h+1.pf0", "h1.pf0.vf-1", "h256.pf0", "h1.pf16", "h1.pf0.vf4096",
		"h99999.pf0", "H1.pf0", "h1 .pf0", "h1.pf0.",
	} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("%q became %s", s, id)
		} else if !strings.Contains(err.Error(), s) {
			t.Errorf("%q: the error does not name it: %v", s, err)
		}
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"h1.pf0.vf2", "h1.pf0", "", "h.pf.vf", "h1.pf0.vf0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err == nil && id.String() != s && id.String()+".vf0" != s {
			t.Fatalf("%q became %s", s, id)
		}
	})
}

// TestTheTableOfTransitionsFollowsTheRules checks the whole transition table against the rules in
// words (DEV-302, DEV-303, DEV-304).
func TestTheTableOfTransitionsFollowsTheRules(t *testing.T) {
	states := []State{abi.StateReset, abi.StateInit, abi.StateReady, abi.StateError, abi.StateDisabled, 5, illegal}
	for _, from := range states {
		for ev := range numEvents + 2 {
			to, err := Transition(from, ev)
			want, ok := from, false
			switch {
			case from > abi.StateDisabled || ev >= numEvents:
			case ev == Disable:
				want, ok = abi.StateDisabled, true
			case from == abi.StateDisabled:
				switch ev {
				case Allow:
					want, ok = abi.StateReset, true
				case Fault:
					ok = true
				}
			case ev == Reset:
				want, ok = abi.StateReset, true
			case ev == Fault:
				want, ok = abi.StateError, true
			case ev == Enable && from == abi.StateReset:
				want, ok = abi.StateInit, true
			case ev == Ready && from == abi.StateInit:
				want, ok = abi.StateReady, true
			}
			if to != want || (err == nil) != ok {
				t.Errorf("%s, %s: %s, %v; want %s, %t", from, ev, to, err, want, ok)
			}
			var te *TransitionError
			if err != nil && (!errors.As(err, &te) || te.State != from || te.Event != ev || te.Error() == "") {
				t.Errorf("%s, %s: %v", from, ev, err)
			}
		}
	}
}

// TestAFunctionGetsToReadyFromAnyState walks lifecycles at random and checks what a driver may rely on.
func TestAFunctionGetsToReadyFromAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Lifecycle
		var first abi.Fault
		resets := uint64(0)
		apply := func(ev Event) {
			before := l
			err := l.Apply(ev)
			if err != nil {
				if l != before {
					t.Fatalf("a refused %s changed the lifecycle", ev)
				}
				return
			}
			first = abi.FaultNone
			if l.State() == abi.StateReset {
				resets++
			}
		}
		actions := map[string]func(*rapid.T){
			"fail": func(t *rapid.T) {
				code := abi.Fault(rapid.Uint32Range(1, 6).Draw(t, "code"))
				was := l.State()
				moved := l.Fail(code, code.String())
				if moved != (was != abi.StateError && was != abi.StateDisabled) {
					t.Fatalf("fault in %s: moved %t", was, moved)
				}
				if moved {
					first = code
				}
			},
			"fault as event": func(t *rapid.T) {
				if l.Apply(Fault) == nil {
					t.Fatal("a fault without a code")
				}
			},
			"": func(t *rapid.T) {
				code, reason := l.Fault()
				if (l.State() == abi.StateError) != (code != abi.FaultNone) || code != first || l.Resets() != resets {
					t.Fatalf("%s: %s %q, first %s, %d resets", l.State(), code, reason, first, l.Resets())
				}
				if code != abi.FaultNone && reason != code.String() {
					t.Fatalf("%s: %q", code, reason)
				}
			},
		}
		for _, ev := range []Event{Enable, Ready, Reset, Disable, Allow} {
			actions[ev.String()] = func(*rapid.T) { apply(ev) }
		}
		t.Repeat(actions)
		// From anywhere, a driver whose function is not disabled gets to READY.
		if l.State() == abi.StateDisabled {
			apply(Allow)
		}
		for _, ev := range []Event{Reset, Enable, Ready} {
			if err := l.Apply(ev); err != nil {
				t.Fatal(err)
			}
		}
		if l.State() != abi.StateReady {
			t.Fatal(l.State())
		}
	})
}

func fn(id ID, tenant uint32, addr string, cid uint32) *Function {
	return &Function{ID: id, Tenant: tenant, Addr: netip.MustParseAddr(addr), GuestCID: cid}
}

func TestATableFindsFunctionsByAddress(t *testing.T) {
	tab := NewTable(3)
	a, b, c := fn(0x010002, 1, "10.0.0.1", 5), fn(0x010001, 1, "10.0.0.2", 5), fn(0x010003, 2, "10.0.0.1", 0)
	for _, f := range []*Function{a, b, c} {
		if err := tab.Add(f); err != nil {
			t.Fatal(err)
		}
	}
	if tab.Len() != 3 {
		t.Error(tab.Len())
	}
	if tab.ByGID(1, a.GID()) != a || tab.ByGID(2, a.GID()) != c || tab.ByGID(3, a.GID()) != nil {
		t.Error("by GID: equal addresses of two tenants")
	}
	for want, f := range map[string]*Function{
		"twice":   fn(a.ID, 9, "10.0.0.9", 0),
		"taken":   fn(0x010009, 1, "::ffff:10.0.0.1", 0), // the same GID
		"24 bits": fn(0x1000000, 9, "10.0.0.9", 0),
		"address": {ID: 9},
		"full":    fn(9, 9, "10.0.0.9", 0),
	} {
		if err := tab.Add(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		} else if errors.Is(err, ErrTableFull) != (want == "full") {
			t.Errorf("%s: %v", want, err)
		}
	}
	if !tab.Remove(a.ID) || tab.Remove(a.ID) || tab.Len() != 2 || tab.ByGID(1, a.GID()) != nil {
		t.Error("removed function is still there")
	}
	tab.Remove(b.ID)
	if err := tab.Add(a); err != nil {
		t.Error("room again:", err)
	}
}

// TestATableHasEachIDAndAddressOnce compares a table with a plain list.
func TestATableHasEachIDAndAddressOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 6
		tab := NewTable(limit)
		var list []*Function
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				f := &Function{
					ID:       ID(rapid.Uint32Range(1, 9).Draw(t, "id")),
					Tenant:   rapid.Uint32Range(1, 2).Draw(t, "tenant"),
					Addr:     netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteRange(1, 5).Draw(t, "addr")}),
					GuestCID: rapid.Uint32Range(0, 3).Draw(t, "cid"),
				}
				ok := len(list) < limit && !slices.ContainsFunc(list, func(o *Function) bool {
					return o.ID == f.ID || o.Tenant == f.Tenant && o.Addr == f.Addr
				})
				if err := tab.Add(f); (err == nil) != ok {
					t.Fatalf("%+v: %v", f, err)
				}
				if ok {
					list = append(list, f)
				}
			},
			"remove": func(t *rapid.T) {
				id := ID(rapid.Uint32Range(1, 9).Draw(t, "id"))
				i := slices.IndexFunc(list, func(f *Function) bool { return f.ID == id })
				if tab.Remove(id) != (i >= 0) {
					t.Fatal(id)
				}
				if i >= 0 {
					list = slices.Delete(list, i, i+1)
				}
			},
			"": func(t *rapid.T) {
				if tab.Len() != len(list) {
					t.Fatal(tab.Len(), len(list))
				}
				for _, f := range list {
					if tab.ByGID(f.Tenant, f.GID()) != f {
						t.Fatalf("%+v not found", f)
					}
				}
			},
		})
	})
}
