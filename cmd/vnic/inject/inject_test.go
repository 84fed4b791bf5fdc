package inject

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
)

// TestInjectImpairsALink impairs an uplink under load by the command line, and ends that again; the
// work is done all the same.
func TestInjectImpairsALink(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		inject := func(args ...string) (string, string, int) {
			return vnictest.Run(t, append([]string{"inject", "link", "-s", l.Hosts[0].Control}, args...)...)
		}
		text, stderr, code := inject("--loss", "1%", "--reorder", "0.05", "--delay", "100us", "--dir", "tx", "--seed", "4")
		if want := `vnic-up1 +10\.99\.0\.1/24 +4500 +rx +none .*\n.* tx +loss 1%, reorder 5% by 200µs, delay 100µs \(seed 4\) +0 `; code != 0 || !regexp.MustCompile(want).MatchString(text) {
			t.Fatalf("exit status %d, %s\n%s", code, stderr, text)
		}
		l.Works()
		text, stderr, code = vnictest.Run(t, "show", "uplinks", "--json", "-s", l.Hosts[0].Control)
		var us []control.Uplink
		if err := json.Unmarshal([]byte(text), &us); code != 0 || err != nil || len(us) != 1 {
			t.Fatalf("exit status %d, %v, %s\n%s", code, err, stderr, text)
		}
		if c := us[0].TX.Counts; c.Packets < 1000 || c.Lost == 0 || c.Reordered == 0 || us[0].RX.Counts.Packets != 0 {
			t.Errorf("%+v", us[0])
		}
		if text, _, code = inject("vnic-up1", "--loss", "0", "--down"); code != 0 || !strings.Contains(text, "down, reorder 5%") {
			t.Errorf("exit status %d\n%s", code, text)
		}
		if text, _, code = inject("--down=false", "--dir", "rx"); code != 0 || !regexp.MustCompile(` rx +none `).MatchString(text) {
			t.Errorf("exit status %d\n%s", code, text)
		}
		if text, _, code = inject("--clear"); code != 0 || strings.Count(text, " none ") != 2 {
			t.Errorf("exit status %d\n%s", code, text)
		}
		for want, args := range map[string][]string{
			"nothing to change: name a value, as --loss 1%, or --clear": {"--dir", "tx"},
			`--loss: "2" is not a share of packets; write 0% to 100%`:   {"--loss", "2"},
			`--delay "soon": write a time with its unit, as 10ms`:       {"--delay", "soon"},
			`unknown uplink "eth0"; use vnic-up1`:                       {"eth0", "--down"},
			`direction "out": write rx for what arrives`:                {"--dir", "out", "--down"},
			"rate: 5 bits per second is too little":                     {"--rate", "5"},
		} {
			if _, stderr, code := inject(args...); code == 0 || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit status %d, %q, want %q", args, code, stderr, want)
			}
		}
	})
}

// TestInjectFailsOperationsOfAFunction injects faults into functions by the command line, and
// removes them. With faults that a driver can survive, work under load is done all the same.
func TestInjectFailsOperationsOfAFunction(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		inject := func(args ...string) (string, string, int) {
			return vnictest.Run(t, append([]string{"inject", args[0], "-s", l.Hosts[0].Control}, args[1:]...)...)
		}
		text, stderr, code := inject("fault", "pf0.vf1", "event-late", "--event", "cq", "--probability", "20%", "--seed", "4", "--delay", "1ms")
		if want := `h1\.pf0\.vf1 +1 +event-late +event cq, probability 20%, seed 4, delay 1ms +0 +0 +in force`; code != 0 || !regexp.MustCompile(want).MatchString(text) {
			t.Fatalf("exit status %d, %s\n%s", code, stderr, text)
		}
		if text, stderr, code = inject("profile", "pf0.vf1", "hostile", "--seed", "9"); code != 0 || !strings.Contains(text, "profile hostile") {
			t.Fatalf("exit status %d, %s\n%s", code, stderr, text)
		}
		l.Works()
		text, stderr, code = inject("list", "--json")
		var faults []control.Fault
		if err := json.Unmarshal([]byte(text), &faults); code != 0 || err != nil || len(faults) != 2 || faults[0].Seed != 9 || faults[0].Hits == 0 {
			t.Fatalf("exit status %d, %v, %s\n%s", code, err, stderr, text)
		}
		if f := faults[1]; f.Kind != "event-late" || f.Seen < 10 || f.Hits == 0 || f.Hits == f.Seen {
			t.Errorf("%+v", f)
		}
		if _, stderr, code = inject("clear", "pf0.vf1", "1"); code != 0 {
			t.Error(stderr)
		}
		if _, stderr, code = inject("profile", "pf0.vf1", "none"); code != 0 {
			t.Error(stderr)
		}
		if text, _, _ = inject("list"); strings.Count(text, "\n") != 1 {
			t.Error(text)
		}
		for want, args := range map[string][]string{
			`unknown fault "x"; use one of event-lost`:                   {"fault", "pf0.vf1", "x"},
			`"2" is not a share`:                                         {"fault", "pf0.vf1", "dma", "--probability", "2"},
			"there is no function h1.pf9":                                {"fault", "pf9", "dma"},
			"h1.pf0.vf1: there is no rule 7":                             {"clear", "pf0.vf1", "7"},
			`rule "seven": write its number`:                             {"clear", "pf0.vf1", "seven"},
			`unknown profile "kind"; use hostile or none`:                {"profile", "pf0.vf1", "kind"},
			"starve: nth, every, probability or limit of starve: it hol": {"fault", "pf0.vf1", "starve", "--nth", "3"},
		} {
			if _, stderr, code := inject(args...); code == 0 || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit status %d, %q, want %q", args, code, stderr, want)
			}
		}
	})
}
