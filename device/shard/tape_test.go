package shard

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// taped makes the shards of NICs in virtual time be recorded, and replayed when the test ends.
var taped = flag.Bool("taped", false, "record the shards of NICs in virtual time, and replay them when the test ends")

// onTape makes the recordings of shards for a test that replays them itself; nil: it does not.
var onTape func(index int, cfg *config.Config) *taping

// kept is what tapes keep of payload.
var kept tape.Payload

// keep makes tapes keep so much of payload, until the test ends.
func keep(t testing.TB, p tape.Payload) {
	before := kept
	kept = p
	t.Cleanup(func() { kept = before })
}

// tapeOf returns the tape of a shard of a test.
func tapeOf(t testing.TB, index int, cfg *config.Config) *tape.Tape {
	if onTape != nil {
		return onTape(index, cfg).tape
	}
	if !*taped {
		return nil
	}
	r := newTaping(index, cfg)
	t.Cleanup(func() {
		if !t.Failed() {
			r.replay(t)
		}
	})
	return r.tape
}

// taping is a recording of a shard.
type taping struct {
	keep   tape.Payload
	index  int
	cfg    *config.Config
	tape   *tape.Tape
	chunks [][]byte
}

func newTaping(index int, cfg *config.Config) *taping {
	r := &taping{index: index, cfg: cfg, keep: kept}
	r.tape = tape.Record(1<<14, kept, func(chunk []byte) []byte {
		if len(chunk) > 0 {
			r.chunks = append(r.chunks, chunk)
		}
		return make([]byte, 0, 1<<17)
	})
	return r
}

// replay plays the recording to its end, and compares what the shard does.
func (r *taping) replay(t testing.TB) *Player {
	t.Helper()
	r.tape.End()
	p, err := r.play()
	if err != nil {
		t.Errorf("shard %d of NIC %d: %v", r.index, r.cfg.NIC.Host, describe(err))
		return p
	}
	on := tape.List(r.keep, tape.Chunks(r.chunks))
	if err := List(on, func(Note) {}); err != nil || on.Steps() != p.tape.Steps() {
		t.Errorf("shard %d of NIC %d: the list has %d of %d Steps: %v", r.index, r.cfg.NIC.Host, on.Steps(), p.tape.Steps(), err)
	}
	return p
}

// play plays the recording to its end.
func (r *taping) play() (*Player, error) {
	var chunks [][]byte
	for _, c := range r.chunks {
		chunks = append(chunks, bytes.Clone(c))
	}
	p, err := NewPlayer(r.index, r.cfg, tape.Play(r.keep, tape.Chunks(chunks)), slog.New(slog.DiscardHandler))
	for err == nil {
		_, err = p.Next()
	}
	if err == io.EOF {
		err = nil
	}
	return p, err
}

func describe(err error) string {
	var d *tape.Difference
	if errors.As(err, &d) {
		return fmt.Sprintf("%v, after %v", err, d.Before)
	}
	return err.Error()
}

// fill sets all of a value to something that is not zero.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("fe80::1")))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("10.0.0.1:7")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.0/8")))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("text")
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
	case reflect.Array:
		fill(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	default:
		if v.CanInt() {
			v.SetInt(-5)
		} else {
			v.SetUint(5)
		}
	}
}

// TestWhatTheCoreSaysIsTheSameAgainFromATape: every order, answer and change, with all that it can hold.
func TestWhatTheCoreSaysIsTheSameAgainFromATape(t *testing.T) {
	for _, want := range []any{new(order), new(change), new(placed), new(gateway.RouteChange), new(tapedError), new(conn.Request), new(peerOrder), new(gateway.PlacedPort)} {
		v := reflect.ValueOf(want).Elem()
		fill(v)
		r := newTaping(0, nil)
		r.tape.Event(tape.Order)
		r.tape.PutValue(v.Interface())
		r.tape.End()
		on := tape.Play(r.keep, tape.Chunks(r.chunks))
		if k, err := on.Next(); k != tape.Order || err != nil {
			t.Fatal(k, err)
		}
		got := reflect.New(v.Type())
		if on.Value(got.Interface()); !reflect.DeepEqual(got.Interface(), want) {
			t.Errorf("%+v, want %+v", got.Elem().Interface(), v.Interface())
		}
	}
}

// useTapes makes NICs in virtual time be recorded, and replayed, until the test ends.
func useTapes(t testing.TB) {
	before := *taped
	*taped = true
	t.Cleanup(func() { *taped = before })
}

// TestAReplayedShardDoesTheSameAgain records what these tests do with both NICs, and replays it.
func TestAReplayedShardDoesTheSameAgain(t *testing.T) {
	useTapes(t)
	for name, test := range map[string]func(*testing.T){
		"VFs by their PF": testVFsByTheirPF,
		"admin commands":  TestEachAdminCommandGetsItsStatus, "admin queues in windows": TestAdminInWindow, "attacks by numbers": TestAttackByNumbers, "attacks by keys": TestAttackByKeys,
		"attacks by faults": TestAttackByFaults, "ARP": TestForgedARPDoesNotMoveAPeer, "DHCP": TestDHCPOptionsOfAllLengthsGetAnAnswer, "driver faults": TestADriversFaultStopsItsOwnFunctionOnly,
		"connections that end": TestAnEndedConnectionLeavesNothing, "ends while connecting": TestEndWhileConnecting, "one NIC": TestConnectionsInsideOneNIC,
		"datagrams": TestDatagramsArriveAsTheirAddressHandleSays, "bounds of datagrams": TestDatagramsArriveAgainAfterAReset, "GIDs": TestDatagramsFromGIDs, "settings": TestChangeAllOrNothing,
		"a removed peer": TestARemovedPeerLeavesNothing, "a peer that comes back": TestAPeerThatComesBackWorks, "a peer that moves": TestAPeerThatMovesKeepsItsConnections,
		"checksums among headers": TestAttackChecksumOverAddress, "wiring": TestWiredByAnyNumbers, "wiring in SQD": TestWiredInSQD, "a driver that detaches": TestDetachMidOperation,
		"interrupts": TestEachArmingBringsOneInterrupt, "a driver that is woken": TestADriverWokenByInterruptsMissesNothing, "hostile event queues": TestEventQueueHostile,
		"a PF and its VFs": TestPFManagesVFs, "a PF that is reset": TestPFResetTakesVFsDown, "operators": TestOperatorSetsVF, "links that are down": TestAFunctionWhoseLinkIsDownIsCutOff,
		"the path's MTU": TestThePathsMTUIsFoundAndKept, "connections and the path's MTU": TestConnectionsKeepToWhatThePathCarries, "a peer that answers elsewhere": TestAPeerThatAnswersOnlyElsewhereHasMoved,
		"keys that are over": TestPacketsOfAnExpiredSPIAreDropped, "groups": TestAGroupsMembersGetEachDatagramOnce, "memory in pieces": TestRegMRInPieces, "RoCE": TestRoCEConnections,
		"a lost peer": TestConnectionsToALostPeerAreFreed, "reserved bits": TestAStrictNICFindsBytesThatMustBeZero,
	} {
		t.Run(name, test)
	}
}

// TestADriverBreaksTheSameRulesInAReplay: one that rings by records in shared memory and has event queues there, and one
// whose session ends because it broke a rule of its channel.
func TestADriverBreaksTheSameRulesInAReplay(t *testing.T) {
	strict := func(_ int, c *config.Config) { c.NIC.Strict = true }
	same := func(what string, made *[]*taping, s *Shard, id pfvf.ID, want int) {
		t.Helper()
		p := (*made)[0].replay(t)
		is, again := s.View().Objects.Violations(0, id), p.Shard.View().Objects.Violations(0, id)
		if len(is) < want || !reflect.DeepEqual(is, again) {
			t.Errorf("%s: %+v, want %+v", what, again, is)
		}
		if a, b := s.View().Functions.Describe(id), p.Shard.View().Functions.Describe(id); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %+v, want %+v", what, b, a)
		}
	}
	for _, clause := range []string{"DRV-1004", "DRV-1010", "DRV-801", "DRV-709", "DRV-902"} {
		made, end := recordAll()
		v := newVirtualWith(t, 1, wire100us, strict)
		v.tell = false
		o, to := newOffender(t, v, usedBy(clause)), newDriver(v, 1, 1)
		o.setUp()
		to.setUp()
		o.connectTo(to, 99)
		offences[clause](o, to)
		same(clause, made, v.shards[0], o.fn.ID, 1)
		end()
	}
	for what, fault := range map[string]error{
		"it leaves": nil, "its channel is lost": errors.New("EOF"),
		"it breaks a rule": guest.Broken(abi.DRV201, []byte{1, 2, 3}, errors.New("a message of no kind")),
	} {
		made, end := recordAll()
		v := newVirtualWith(t, 1, wire100us, strict)
		d := newDriver(v, 0, 1)
		d.setUp()
		_ = d.ch.Close(fault)
		v.idle(1_000_000)
		same(what, made, v.shards[0], d.fn.ID, map[bool]int{true: 1}[what == "it breaks a rule"])
		end()
	}
}

// TestPacketsOfASuperframeForAnotherShardAreReplayed: of a superframe the tape has the beginning only, and what shards hand
// over begins where its sealed packets did.
func TestPacketsOfASuperframeForAnotherShardAreReplayed(t *testing.T) {
	useTapes(t)
	defer func(before int) { perNIC = before }(perNIC)
	perNIC = 2
	v := newPortWorldWith(t, 4, func(i int, c *config.Config) {
		if other := 1 - c.ShardOf()(0, 1); i == 1 { // than the sender's, whose keys are its counterpart's
			c.Functions[0].VFs[0].Shard = &other
		}
	})
	v.super = &joiner{}
	for range 20 {
		for range 5 {
			v.say(0, 0, host1, host2, 10)
		}
		v.idle(1_000_000)
	}
	if n := len(v.received(1)); n != 100 {
		t.Errorf("%d of 100 packets arrived", n)
	}
	if n := v.sum(1, func(s *Shard) uint64 { return s.plain.gw.Stats().HandedOver }); n == 0 {
		t.Error("no packet came to the other shard")
	}
}

// testVFsByTheirPF lets a PF look at a VF, perhaps of another shard, and reset it.
func testVFsByTheirPF(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v := newVirtualWith(t, 8, wire100us, manyVFs)
		pf, vf := newDriver(v, 0, 0), newDriver(v, 0, 1)
		pf.enable()
		vf.setUp()
		var q abi.QueryVFResult
		if q.Unmarshal(pf.must(abi.AdminOpQueryVF, &abi.VFNumber{VF: 1})); q.State != abi.StateReady || q.MRs != 1 {
			t.Errorf("%+v", q)
		}
		pf.must(abi.AdminOpVFReset, &abi.VFNumber{VF: 1})
		if s := vf.fn.Lifecycle.State(); s != abi.StateReset {
			t.Errorf("the VF is %s", s)
		}
	})
}

var tapeSeeds = flag.Int("tape.seeds", 8, "record and replay so many seeds of random work over bad links")

// TestEverySeedIsReplayed records and replays random work over links that lose, repeat and reorder
// frames: requests of all kinds, resets of functions, connections that are made again.
func TestEverySeedIsReplayed(t *testing.T) {
	replaySeeds(t, *tapeSeeds)
}

// TestLongThousandSeedsAreReplayed does what TestEverySeedIsReplayed does, with NICs of one to three shards.
func TestLongThousandSeedsAreReplayed(t *testing.T) { replaySeeds(t, 1000) }

func replaySeeds(t *testing.T, n int) {
	useTapes(t)
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			defer func(before int) { perNIC = before }(perNIC)
			perNIC = 1 + int(seed%3)
			keep(t, tape.Payload(seed/3%3))
			randomWork(t, seed)
		})
	}
}

func randomWork(t *testing.T, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 77))
	bad := wire100us
	bad.Loss, bad.Duplicate, bad.Reorder = dice.Float64()*0.02, dice.Float64()*0.02, dice.Float64()*0.05
	v := newVirtual(t, seed, bad)
	a, b := pair(v)
	for range 60 {
		switch n := 1 + dice.IntN(20000); dice.IntN(12) {
		case 0:
			b.receive(0, 1<<15)
			a.send(abi.OpSend, 0, n, b, 0)
		case 1:
			a.send(abi.OpRead, 0, n, b, dice.IntN(1000))
		case 2:
			v.idle(falcon.Time(dice.IntN(5_000_000)))
		case 3:
			copy(a.data()[dice.IntN(1000):], fmt.Sprint(dice.Uint64()))
			v.step()
		case 4:
			a.send(abi.OpWrite, 0, n, b, 1<<22) // beyond its memory: the queue pair fails
		default:
			a.send(abi.OpWrite, dice.IntN(1000), n, b, dice.IntN(1000))
		}
		for range dice.IntN(3) {
			v.idle(falcon.Time(dice.IntN(300_000)))
		}
		for {
			cqe, ok := a.completion()
			if !ok {
				break
			}
			if cqe.Status != abi.WCSuccess { // begin again
				a.write(abi.RegControl, 4, uint64(abi.ControlReset))
				b.write(abi.RegControl, 4, uint64(abi.ControlReset))
				clear(a.mem)
				clear(b.mem)
				v.idle(1_000_000)
				a.setUp()
				b.setUp()
				a.connectTo(b, 99)
				break
			}
		}
		for ok := true; ok; {
			_, ok = b.completion()
		}
		a.collect()
		b.collect()
		if a.fn.Lifecycle.State() != abi.StateReady || b.fn.Lifecycle.State() != abi.StateReady {
			t.Fatalf("%v, %v", a.fn.Lifecycle.State(), b.fn.Lifecycle.State())
		}
	}
}

// rotating makes shards be recorded into two buffers, which nobody keeps, until the test ends.
func rotating(t *testing.T) {
	onTape = func(index int, cfg *config.Config) *taping {
		spare := [2][]byte{make([]byte, 0, 2<<20), make([]byte, 0, 2<<20)}
		return &taping{index: index, cfg: cfg, tape: tape.Record(1<<20, kept, func([]byte) []byte {
			spare[0], spare[1] = spare[1], spare[0]
			return spare[0]
		})}
	}
	t.Cleanup(func() { onTape = nil })
}

// recordAll makes all shards record that are made before end is called. It returns their recordings,
// oldest first.
func recordAll() (made *[]*taping, end func()) {
	made = new([]*taping)
	onTape = func(index int, cfg *config.Config) *taping {
		x := newTaping(index, cfg)
		*made = append(*made, x)
		return x
	}
	return made, func() { onTape = nil }
}

const marker = "in the payload of a WRITE"

// aRecording returns the recording of a shard that did some work.
func aRecording(t testing.TB, p tape.Payload) *taping {
	t.Helper()
	keep(t, p)
	made, end := recordAll()
	defer end()
	v := newVirtual(t, 5, wire100us)
	a, b := pair(v)
	copy(a.data()[100:], marker)
	a.send(abi.OpWrite, 0, 5000, b, 0)
	a.done()
	(*made)[0].tape.End()
	return (*made)[0]
}

// overIWARP returns two drivers whose queue pairs are connected over iWARP, and what records their NICs.
func overIWARP(t testing.TB, p tape.Payload) (a, b *driver, made *[]*taping) {
	t.Helper()
	keep(t, p)
	made, end := recordAll()
	defer end()
	v := newVirtualWith(t, 5, wire100us, func(_ int, c *config.Config) {
		speakRoCE(c)
		c.RDMA.Transport = config.TransportIWARP
	})
	for i := range v.nics {
		t.Cleanup(v.shards[i].Close)
	}
	v.until("keys for the tunnels", func() bool { return v.keyless() == 0 })
	v.idle(5 * cmDelay)
	a, b = pair(v)
	return a, b, made
}

// TestWhatGoesOverIWARPIsReplayed, with payload kept by choice: in whole as it was, else not at all.
func TestWhatGoesOverIWARPIsReplayed(t *testing.T) {
	for p, want := range map[tape.Payload]bool{tape.Whole: true, tape.Digest: false, tape.None: false} {
		a, b, made := overIWARP(t, p)
		copy(a.data()[100:], marker)
		a.send(abi.OpWrite, 0, 5000, b, 0)
		a.done()
		b.receive(0, 1<<15)
		a.send(abi.OpSend, 0, 30000, b, 0)
		a.done()
		b.done()
		a.send(abi.OpRead, 0, 30000, b, 0)
		a.done()
		for _, r := range *made {
			r.replay(t)
			if is := bytes.Contains(bytes.Join(r.chunks, nil), []byte(marker)); is != want {
				t.Errorf("%s: payload is kept: %t", p, is)
			}
		}
	}
}

// TestAReplayShowsWhatTheShardShowed: functions, queue pairs, queues, credits, counters, and the
// connections over Falcon, which the core of the NIC shows.
func TestAReplayShowsWhatTheShardShowed(t *testing.T) {
	made, end := recordAll()
	defer end()
	v := newVirtual(t, 5, wire100us)
	a, b := pair(v)
	a.send(abi.OpWrite, 0, 5000, b, 0)
	a.done()
	a.send(abi.OpWrite, 0, 5000, b, 0) // is under way at the end
	v.idle(120_000)
	show := func(s *Shard, conns []control.Connection) (all []any) {
		o := s.View().Objects
		for _, id := range s.View().Functions.Present() {
			all = append(all, s.View().Functions.Describe(id), o.QPs(id), o.Queues(id), o.Credits(id), o.Violations(v.now, id))
		}
		return append(all, o.CreditRoots(), s.Counters(), conns)
	}
	live := v.cores[0].Connections(v.now)
	v.shards[0].View().Peers.Paths(live)
	for i := range live { // only the core knows these
		live[i].PeerHost, live[i].AgeMS, live[i].RxSPI = 0, 0, 0
	}
	p := (*made)[0].replay(t)
	want, got := show(v.shards[0], live), show(p.Shard, p.Connections())
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	if len(live) == 0 || live[0].QPN != a.qpn || live[0].Cwnd == 0 {
		t.Errorf("%+v", live)
	}
}

// TestARecordingSaysWhereAReplayDiffers, and what came before.
func TestARecordingSaysWhereAReplayDiffers(t *testing.T) {
	r := aRecording(t, tape.Whole)
	if _, err := r.play(); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.chunks {
		if at := bytes.Index(c, []byte(marker)); at >= 0 { // as the WRITE read it
			c[at] ^= 1
		}
	}
	p, err := r.play()
	var d *tape.Difference
	if !errors.As(err, &d) || d.Step == 0 || d.What != "frames for the uplink differ" || len(d.Before) == 0 {
		t.Errorf("%v, %+v", err, d)
	}
	notes := p.Notes()
	if last := notes[len(notes)-1]; last.Step != d.Step || !strings.HasPrefix(last.What, "out PushData PSN ") || !strings.Contains(last.What, ": h1.pf0.vf1 QP ") {
		t.Errorf("the packet is not named: %+v", last)
	}
}

// TestPayloadIsKeptByChoice: in whole as it was, else not at all, and the shards do the same again.
func TestPayloadIsKeptByChoice(t *testing.T) {
	for p, want := range map[tape.Payload]bool{tape.Whole: true, tape.Digest: false, tape.None: false} {
		r := aRecording(t, p)
		if is := bytes.Contains(bytes.Join(r.chunks, nil), []byte(marker)); is != want {
			t.Errorf("%s: payload is kept: %t", p, is)
		}
		if _, err := r.play(); err != nil {
			t.Errorf("%s: %v", p, describe(err))
		}
	}
}

// keyLines collects a key log.
type keyLines struct{ bytes.Buffer }

func (*keyLines) Close() error { return nil }

// TestNoKeyIsInARecording searches recordings for all keys that the NICs used meanwhile.
func TestNoKeyIsInARecording(t *testing.T) {
	keep(t, tape.Whole)
	made, end := recordAll()
	defer end()
	v := newVirtual(t, 5, wire100us)
	var lines keyLines
	log := security.NewKeyLog(&lines, func(error) {})
	for i := range v.nics {
		v.cores[i].LogKeysTo(log)
		for _, s := range v.nics[i] {
			s.LogKeysTo(log)
		}
	}
	a, b := pair(v)
	a.send(abi.OpWrite, 0, 5000, b, 0)
	a.done()
	_ = log.Close()
	keys := regexp.MustCompile(`\b[0-9a-f]{32,64}\b`).FindAllString(lines.String(), -1)
	if len(keys) == 0 {
		t.Fatalf("no keys were used: %s", lines.String())
	}
	for _, r := range *made {
		r.tape.End()
		all := bytes.Join(r.chunks, nil)
		for _, k := range keys {
			if key, err := hex.DecodeString(k); err != nil || bytes.Contains(all, key) || bytes.Contains(all, []byte(k)) {
				t.Errorf("key %s is in the recording of shard %d of NIC %d", k, r.index, r.cfg.NIC.Host)
			}
		}
	}
}

// TestAReplaySaysWhatAnOperatorChanged: each kind of change has its text.
func TestAReplaySaysWhatAnOperatorChanged(t *testing.T) {
	for want, c := range map[string]change{
		"an operator clears all injected faults":      {ClearFaults: true},
		"an operator changes faults of h1.pf0.vf2":    {ID: 0x01_0002, Fault: &control.FaultChange{}},
		"an operator clears violations of h1.pf0.vf2": {ID: 0x01_0002, ClearViolations: true},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestADamagedRecordingIsRefused: wherever it is cut or changed, replaying it ends with an error, or
// with the same output.
func TestADamagedRecordingIsRefused(t *testing.T) {
	r := aRecording(t, tape.Digest)
	whole := bytes.Join(r.chunks, nil)
	dice := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := bytes.Clone(whole)
		if dice.IntN(2) == 0 {
			b = b[:dice.IntN(len(b))]
		} else {
			b[dice.IntN(len(b))] ^= byte(1 << dice.IntN(8))
		}
		r.chunks = [][]byte{b}
		_, _ = r.play()
	}
}

// TestARecordingWithoutABeginningIsListed: what is left of it, with the numbers and times of the Steps.
func TestARecordingWithoutABeginningIsListed(t *testing.T) {
	r := aRecording(t, tape.Digest)
	list := func(chunks [][]byte) (notes []Note) {
		if err := List(tape.List(r.keep, tape.Chunks(chunks)), func(n Note) { notes = append(notes, n) }); err != nil {
			t.Fatal(err)
		}
		return notes
	}
	whole := list(r.chunks)
	text := fmt.Sprint(whole)
	for _, want := range []string{"h1.pf0.vf1 gets a driver", "driver of h1.pf0.vf1 rings SQ", "order of the core: Decide", "in  BACK data ", "in  ARP"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %v", want, whole)
		}
	}
	missing, now := tape.Begins(r.chunks[1])
	rest := list(r.chunks[1:])
	if want := fmt.Sprintf("Steps 1 to %d are missing", missing); missing == 0 || rest[0] != (Note{missing, now, want}) {
		t.Errorf("%v, want %s", rest[0], want)
	}
	same := func(a, b Note) bool { return a.Step == b.Step && a.Now == b.Now }
	for i, j := len(rest)-1, len(whole)-1; i > 0; i, j = i-1, j-1 {
		if !same(rest[i], whole[j]) {
			t.Fatalf("%v, want %v", rest[i], whole[j])
		}
	}
}

// FuzzList: no recording ends the program.
func FuzzList(f *testing.F) {
	r := aRecording(f, tape.Digest)
	f.Add(bytes.Join(r.chunks, nil))
	f.Fuzz(func(_ *testing.T, b []byte) { _ = List(tape.List(r.keep, tape.Chunks([][]byte{b})), func(Note) {}) })
}

// FuzzReplay: no recording ends the program.
func FuzzReplay(f *testing.F) { fuzzReplay(f, aRecording(f, tape.Digest)) }

// FuzzReplayOverIWARP: nor does one with connections of TCP.
func FuzzReplayOverIWARP(f *testing.F) {
	a, b, made := overIWARP(f, tape.Digest)
	a.send(abi.OpWrite, 0, 5000, b, 0)
	a.done()
	(*made)[0].tape.End()
	fuzzReplay(f, (*made)[0])
}

func fuzzReplay(f *testing.F, r *taping) {
	f.Add(bytes.Join(r.chunks, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		own := *r
		own.chunks = [][]byte{b}
		_, _ = own.play()
	})
}

// TestAReducedRecordingStillShowsTheViolation: of a soak with two drivers, one of which breaks a rule,
// little is left, the same each time, and a replay of it finds the rule broken by the same function.
func TestAReducedRecordingStillShowsTheViolation(t *testing.T) {
	keep(t, tape.Whole)
	made, end := recordAll()
	defer end()
	v := newVirtual(t, 5, wire100us)
	var from, to [2]*driver
	for i := range from {
		from[i], to[i] = newDriver(v, 0, i+1), newDriver(v, 1, i+1)
		from[i].setUp()
		to[i].setUp()
		from[i].connectTo(to[i], 99)
	}
	work := func(rounds int) {
		for n := range rounds {
			for i := range from {
				from[i].send(abi.OpWrite, 0, 500+n*100, to[i], 0)
			}
			for i := range from {
				from[i].done()
			}
		}
	}
	work(20)
	binary.LittleEndian.PutUint32(from[0].mem[pageSQ*pageSize:], 1000) // its send queue has 32 entries
	from[0].ring(abi.DoorbellSQ, from[0].qpn, 1000)
	v.idle(1_000_000)
	(*made)[0].tape.End()
	if (*made)[0].reduce(t, breaks602(from[0])) > 0.2 {
		t.Error("more than a fifth of the bytes is left")
	}
}

// breaks602 looks for what a driver does that says that it has posted more than its send queue has room for.
func breaks602(d *driver) func(*Player) bool {
	id := d.fn.ID
	return func(p *Player) bool {
		return slices.ContainsFunc(p.Shard.View().Objects.Violations(0, id), func(is control.Violation) bool { return is.Clause == "DRV-602" })
	}
}

// reduce reduces the recording to what shows something. Few events are left, and the same each time. It returns which
// share of the bytes is.
func (r *taping) reduce(t *testing.T, shows func(*Player) bool) (share float64) {
	t.Helper()
	size := func(chunks [][]byte) int { return len(bytes.Join(chunks, nil)) }
	var last []byte
	for range 2 {
		is, err := Reduce(r.index, r.cfg, tape.Play(r.keep, tape.Chunks(r.chunks)), shows)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, %d of %d bytes", is, size(is.Chunks), size(r.chunks))
		if is.Events*5 > is.WasEvents {
			t.Errorf("%s: more than a fifth", is)
		}
		share = float64(size(is.Chunks)) / float64(size(r.chunks))
		if b := bytes.Join(is.Chunks, nil); last != nil && !bytes.Equal(b, last) {
			t.Error("another recording than the first time")
		} else {
			last = b
		}
		p, err := (&taping{index: r.index, cfg: r.cfg, keep: r.keep, chunks: is.Chunks}).play()
		if err != nil || !shows(p) {
			t.Errorf("it does not show it: %v", err)
		}
	}
	return share
}

// TestAReducedRecordingOverIWARPStillShowsIt: a rule that a driver broke, and a queue pair that its peer ended.
func TestAReducedRecordingOverIWARPStillShowsIt(t *testing.T) {
	a, b, made := overIWARP(t, tape.Whole)
	for n := range 20 {
		a.send(abi.OpWrite, 0, 500+n*100, b, 0)
		a.send(abi.OpRead, 0, 500+n*100, b, 0)
		a.done()
		a.done()
	}
	a.send(abi.OpWrite, 0, 100, b, 1<<22) // beyond its memory
	a.v.until("the end of the queue pair", func() bool { return endedQP(a)(&Player{Shard: a.shard()}) })
	binary.LittleEndian.PutUint32(b.mem[pageSQ*pageSize:], 1000)
	b.ring(abi.DoorbellSQ, b.qpn, 1000)
	a.v.idle(1_000_000)
	for i, shows := range []func(*Player) bool{endedQP(a), breaks602(b)} {
		(*made)[i].tape.End()
		(*made)[i].reduce(t, shows)
	}
}

// endedQP looks for a driver's queue pair that is in error.
func endedQP(d *driver) func(*Player) bool {
	id := d.fn.ID
	return func(p *Player) bool {
		return slices.ContainsFunc(p.Shard.View().Objects.QPs(id), func(q control.QP) bool { return q.State == abi.QPStateErr.String() })
	}
}
