package shard

import "testing"

// TestTwoShards runs the tests that may involve several shards again with two shards for each NIC.
// Those under eachShards do so by themselves; -shards makes all others do it.
func TestTwoShards(t *testing.T) {
	if perNIC != 1 {
		t.Skip("all tests run with several shards")
	}
	perNIC = 2
	defer func() { perNIC = 1 }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"AttackARP", TestAttackARP},
		{"AttackChecksumOverAddress", TestAttackChecksumOverAddress},
		{"BadPackets", TestBadPackets},
		{"CaptureExplains", TestCaptureExplains},
		{"CaptureExplainsPlainIP", TestCaptureExplainsPlainIP},
		{"ChangeAllOrNothing", TestChangeAllOrNothing},
		{"ConnectionEnds", TestConnectionEnds},
		{"DatagramsToNobody", TestDatagramsToNobody},
		{"DetachMidOperation", TestDetachMidOperation},
		{"DisconnectFinishes", TestDisconnectFinishes},
		{"EndWhileConnecting", TestEndWhileConnecting},
		{"ExpiredSPI", TestExpiredSPI},
		{"ForeignSPI", TestForeignSPI},
		{"GatewayClass", TestGatewayClass},
		{"InsideOneNIC", TestInsideOneNIC},
		{"KeyLog", TestKeyLog},
		{"LinkState", TestLinkState},
		{"LoopbackCapture", TestLoopbackCapture},
		{"LoopbackTenants", TestLoopbackTenants},
		{"PFResetTakesVFsDown", TestPFResetTakesVFsDown},
		{"PartingEndsWithItsFunction", TestPartingEndsWithItsFunction},
		{"PathHeaders", TestPathHeaders},
		{"PlainBadInput", TestPlainBadInput},
		{"PlainHostilePeer", TestPlainHostilePeer},
		{"PlainNoAllocations", TestPlainNoAllocations},
		{"PlainRekey", TestPlainRekey},
		{"PlainTenantsApart", TestPlainTenantsApart},
		{"PlainTunnel", TestPlainTunnel},
		{"PlainWithdraw", TestPlainWithdraw},
		{"RoCE", TestRoCE},
		{"RoCECredits", TestRoCECredits},
		{"RoCEDatagrams", TestRoCEDatagrams},
		{"RotateUnreachable", TestRotateUnreachable},
		{"RoutesTold", TestRoutesTold},
		{"SuperframesImpaired", TestSuperframesImpaired},
		{"SurvivesPanics", TestSurvivesPanics},
		{"TransportAuto", TestTransportAuto},
		{"TransportMode", TestTransportMode},
	} {
		t.Run(c.name, c.test)
	}
}
