package device

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
)

// TestAFunctionIsConfinedToItsDMAWindow checks that a function works with memory inside its window and is refused memory
// outside it, while another function of the same client is not limited (DEV-401, DEV-405, DEV-406).
func TestAFunctionIsConfinedToItsDMAWindow(t *testing.T) {
	// A bare client's memfd begins at this device address and its second half elsewhere.
	const first, half = 1<<32 + 1<<40, 8 << 20
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(_ int, c *config.Config) {
		c.Functions[0].VFs[0].DMAWindow = &config.Window{Address: first, Size: half}
	})
	ctx := testContext(t)
	for vf, limited := range map[string]bool{"pf0.vf1": true, "pf0.vf2": false} {
		d := w.open(0, vf)
		e := newEndpoint(t, d) // its queues and 4 MiB of data
		if vf == "pf0.vf1" {
			b := newEndpoint(t, w.open(1, vf))
			connect(t, e, b, 1)
			e.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{e.mr.SGE(0, 9000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		}
		buf, err := d.Alloc(6 << 20) // does not fit in the rest of the first half
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.pd.RegMR(ctx, buf, guestlib.LocalWrite)
		if limited != errors.Is(err, guestlib.ErrInvalid) || !limited && err != nil {
			t.Errorf("%s: %v", vf, err)
		}
		if limited && !strings.Contains(err.Error(), "outside the function's DMA window 0x10100000000+0x800000") {
			t.Errorf("%s: %v", vf, err)
		}
		if err := d.Err(); err != nil {
			t.Errorf("%s: %v", vf, err)
		}
		// The driver may register exactly the memory that it reads here (DEV-406).
		ranges, err := d.Memory(ctx)
		want := []guestlib.Range{{Address: 1 << 32, Length: half}, {Address: first, Length: half}}
		if limited {
			want = want[1:]
		}
		if err != nil || !slices.Equal(ranges, want) {
			t.Errorf("%s reaches %v (%v), want %v", vf, ranges, err, want)
		}
	}
}
