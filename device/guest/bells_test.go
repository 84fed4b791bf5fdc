package guest

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// rings is a bell with a fixed number of records, and its driver.
type rings struct{ fd, records, taken int }

func (r *rings) FD() int            { return r.fd }
func (r *rings) Arm() (bool, error) { return r.records > 0, nil }
func (r *rings) Close()             {}

func (r *rings) Take(b []byte) (int, error) {
	if r.records == 0 {
		return 0, nil
	}
	r.records--
	clear(b[:abi.DoorbellSize])
	return abi.DoorbellSize, nil
}

func (r *rings) Doorbell(falcon.Time, *abi.Doorbell, []byte) { r.taken++ }
func (r *rings) BrokeBell(abi.Clause)                        {}
func (r *rings) Breach(error)                                {}

// TestBellOfNobody checks that a ring is ignored if its driver has left since, and that the other
// bells that rang are still polled first.
func TestBellOfNobody(t *testing.T) {
	b := NewBells(&effect.List{})
	all := make([]*rings, 3*bellQuantum)
	for i := range all {
		all[i] = &rings{fd: i, records: 1}
		b.Add(all[i], all[i], nil)
	}
	gone, stays := all[len(all)-2], all[len(all)-1]
	b.Rang(gone.fd)
	b.Rang(stays.fd)
	b.Remove(gone)
	if !b.Poll(1) || gone.taken != 0 || stays.taken != 1 {
		t.Errorf("%d records of who is gone, %d of who rang", gone.taken, stays.taken)
	}
}
