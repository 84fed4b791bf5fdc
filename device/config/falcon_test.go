package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
)

// TestEveryKeyWritesOutTheSoftwareProfile: a file that spells out all values of the software profile
// changes none of them.
func TestEveryKeyWritesOutTheSoftwareProfile(t *testing.T) {
	c, err := Load(everyKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(falcon.Software(), c.Falcon.Build(), cmp.AllowUnexported(cc.Swift{}, cc.SwiftParams{})); diff != "" {
		t.Errorf("%s and the software profile differ (-profile +file):\n%s", everyKeyFile, diff)
	}
}

func TestAlgorithmByName(t *testing.T) {
	c, err := Parse([]byte(minimal + "falcon: {cc: {fcwnd: 8, algorithm: fixed, rto: 20ms}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Falcon.Build().CC, (cc.Fixed{Fcwnd: 8 * cc.One, Ncwnd: 64, RTO: 152588}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestFalconKeysOverrideTheProfile(t *testing.T) {
	c, err := Parse([]byte(minimal + `
falcon: {profile: hardware, max_txn: 32, give_up: 3s, ar_burst: true, cc: {min_rto: 2ms, delay_select: full, plb: true}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := falcon.Hardware()
	want.MaxTxn, want.GiveUp, want.ARBurst = 32, 3e9, true
	params := cc.HardwareParams()
	params.MinRTO, params.DelaySelect, params.PLB = 15259, cc.DelayFull, true
	want.CC = cc.NewSwift(params)
	if diff := cmp.Diff(want, c.Falcon.Build(), cmp.AllowUnexported(cc.Swift{}, cc.SwiftParams{})); diff != "" {
		t.Error(diff)
	}
}
