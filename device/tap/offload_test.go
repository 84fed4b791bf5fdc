package tap

import (
	"os"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/netns"
)

// If the kernel refuses USO, the port works without superframes.
func TestOffloadLadder(t *testing.T) {
	if _, err := os.Stat(tunDevice); err != nil && os.Getenv("VNIC_TEST_REQUIRE") != "1" {
		t.Skip(err)
	}
	all := offloads
	defer func() { offloads = all }()
	const unknown = 1 << 15 // no kernel has this offload
	for refused := range len(offloads) {
		offloads = slices.Clone(all)
		for i := range refused {
			offloads[i].bits |= unknown
		}
		netns.Run(t, func() {
			p, err := Open(Config{Name: "up1", Superframes: true})
			if err != nil {
				t.Fatal(err)
			}
			if c := p.Capabilities(); refused > 0 && (c.USO || c.MaxSegments != 1) || c.USO != (c.MaxSegments > 1) {
				t.Errorf("%d kinds refused: %+v", refused, c)
			}
			if got, want := BufferSize(p), p.MTU()+FrameOverhead; refused > 0 && got != want {
				t.Errorf("buffers of %d bytes, want %d", got, want)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
