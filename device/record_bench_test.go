package device

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// recorderTurns is how often each NIC is measured. It is odd, for the median.
const recorderTurns = 9

// BenchmarkRecorder compares NICs that keep a recording in memory (nic.recorder), with digests of payload
// and with all of it, with NICs that do not, in turn: WRITEs of 64 bytes and of 64 KiB. Quotients are
// medians of the turns' own. A second NIC without a recorder, among the others, says how far apart two
// measurements of the same are.
func BenchmarkRecorder(b *testing.B) {
	kinds := []string{"", "again", tape.Digest.String(), tape.Whole.String()}
	quotients := map[string][]float64{}
	for b.Loop() {
		for turn := range recorderTurns {
			var of [4][2]float64
			for k := range kinds {
				i := (k + turn) % len(kinds) // each is first as often
				change := func(_ int, c *config.Config) {
					if i > 1 {
						c.NIC.Recorder = &config.Recorder{Size: config.DefaultRecorder, Payload: kinds[i]}
					}
				}
				onTAPs(b, [2]string{config.SuperframesAuto, config.SuperframesAuto}, func(w *world) {
					r := &rig{w: w, from: newDeepEndpoint(b, w.open(0, "pf0.vf1")), to: newDeepEndpoint(b, w.open(1, "pf0.vf1"))}
					connect(b, r.from, r.to, 1)
					r.stream(b, guestlib.Write, 65536, 200) // windows open, pools fill
					of[i][0] = medianOf(70_000, func(n int) float64 { return float64(n) / r.stream(b, guestlib.Write, 64, n).Seconds() })
					of[i][1] = medianOf(7_000, func(n int) float64 { return gbps(65536, n, r.stream(b, guestlib.Write, 65536, n)) })
				}, change)
			}
			for i, kind := range kinds[1:] {
				for k, what := range []string{"write64", "write64k"} {
					name := "record/" + what + "_" + kind + "_over_off"
					quotients[name] = append(quotients[name], of[i+1][k]/of[0][k])
				}
			}
		}
	}
	reportMedians(b, quotients)
	b.ReportMetric(0, "ns/op") // says nothing
}
