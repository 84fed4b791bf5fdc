package cm

// transition is what an event does to a connection in some state. An event
// without an entry is illegal in that state: it is counted and changes nothing.
type transition struct {
	next State
	do   func(m *Manager, now Time, c *conn, a *args)
}

// table is the whole state machine. Read a line as: in this state, on this
// event, do that and go there.
var table = [numStates][numEvents]transition{
	StateReqSent: {
		evREP:          {StateEstablished, (*Manager).establishActive},
		evBadREP:       {StateTimeWait, (*Manager).cancel},
		evREJ:          {StateClosed, (*Manager).rejected},
		evDisconnect:   {StateTimeWait, (*Manager).cancel},
		evFunctionGone: {StateTimeWait, (*Manager).cancelSilently},
		evRetry:        {StateReqSent, (*Manager).resend},
		evGiveUp:       {StateTimeWait, (*Manager).cancel},
		evPeerDown:     {StateTimeWait, (*Manager).fail},
	},
	StateReqReceived: {
		evREJ:          {StateClosed, (*Manager).fail},
		evDuplicateREQ: {StateReqReceived, (*Manager).ignore},
		evAccept:       {StateRepSent, (*Manager).openPassive},
		evReject:       {StateClosed, (*Manager).cancelSilently},
		evDisconnect:   {StateClosed, (*Manager).cancel},
		evFunctionGone: {StateClosed, (*Manager).cancelSilently},
		evGiveUp:       {StateClosed, (*Manager).cancel},
		evPeerDown:     {StateClosed, (*Manager).fail},
	},
	StateRepSent: {
		evREJ:          {StateTimeWait, (*Manager).fail},
		evRTU:          {StateEstablished, (*Manager).establishPassive},
		evDREQ:         {StateTimeWait, (*Manager).disconnected},
		evDuplicateREQ: {StateRepSent, (*Manager).resend},
		evDisconnect:   {StateDreqSent, (*Manager).disconnect},
		evFunctionGone: {StateDreqSent, (*Manager).disconnectSilently},
		evRetry:        {StateRepSent, (*Manager).resend},
		evGiveUp:       {StateTimeWait, (*Manager).cancel},
		evPeerDown:     {StateTimeWait, (*Manager).fail},
	},
	StateEstablished: {
		evREP:          {StateEstablished, (*Manager).confirm},
		evBadREP:       {StateEstablished, (*Manager).ignore},
		evREJ:          {StateTimeWait, (*Manager).lost},
		evRTU:          {StateEstablished, (*Manager).ignore},
		evDREQ:         {StateTimeWait, (*Manager).disconnected},
		evDuplicateREQ: {StateEstablished, (*Manager).ignore},
		evDisconnect:   {StateDreqSent, (*Manager).disconnect},
		evFunctionGone: {StateDreqSent, (*Manager).disconnectSilently},
		evPeerDown:     {StateEstablished, (*Manager).ignore},
		evPeerRestart:  {StateTimeWait, (*Manager).lost},
	},
	StateDreqSent: {
		evREP:          {StateDreqSent, (*Manager).ignore}, // our DREQ follows it
		evBadREP:       {StateDreqSent, (*Manager).ignore},
		evREJ:          {StateTimeWait, (*Manager).ignore},
		evRTU:          {StateDreqSent, (*Manager).ignore},
		evDREQ:         {StateTimeWait, (*Manager).answerDREQ}, // both at once
		evDREP:         {StateTimeWait, (*Manager).ignore},
		evDuplicateREQ: {StateDreqSent, (*Manager).ignore},
		evFunctionGone: {StateDreqSent, (*Manager).ignore},
		evRetry:        {StateDreqSent, (*Manager).resend},
		evGiveUp:       {StateTimeWait, (*Manager).ignore},
		evPeerDown:     {StateTimeWait, (*Manager).ignore},
	},
	StateTimeWait: {
		evREP:          {StateTimeWait, (*Manager).answerStale},
		evBadREP:       {StateTimeWait, (*Manager).answerStale},
		evREJ:          {StateTimeWait, (*Manager).ignore},
		evRTU:          {StateTimeWait, (*Manager).answerStale}, // the peer missed the end
		evDREQ:         {StateTimeWait, (*Manager).answerDREQ},
		evDREP:         {StateTimeWait, (*Manager).ignore},
		evDuplicateREQ: {StateTimeWait, (*Manager).ignore},
		evFunctionGone: {StateTimeWait, (*Manager).ignore},
		evGiveUp:       {StateClosed, (*Manager).ignore},
		evPeerDown:     {StateTimeWait, (*Manager).ignore},
		evPeerRestart:  {StateTimeWait, (*Manager).ignore},
	},
}

// fire applies an event to a connection.
func (m *Manager) fire(now Time, c *conn, ev event, a args) error {
	t := table[c.state][ev]
	if t.do == nil {
		m.stats.IllegalEvents++
		return ErrState
	}
	t.do(m, now, c, &a)
	if ev == evRetry {
		c.tries++
		m.stats.Retries++
		m.arm(now, c)
	}
	if t.next != c.state {
		m.enter(now, c, t.next)
	}
	return nil
}

// enter changes the state, keeps the counts of states and sets the timer.
func (m *Manager) enter(now Time, c *conn, next State) {
	switch u := m.usage(c.par.Function); c.state {
	case StateReqReceived:
		u.backlog.Give(c.source())
	case StateTimeWait:
		c.waiting.Remove()
	}
	c.state, c.tries = next, 0
	switch next {
	case StateClosed:
		m.remove(c)
		return
	case StateReqReceived:
		m.usage(c.par.Function).backlog.Take(c.source())
	case StateEstablished:
		c.msg = nil
	case StateTimeWait:
		c.msg = nil
		m.usage(c.par.Function).waiting.PushBack(&c.waiting, c)
	}
	m.arm(now, c)
}

// arm sets the timer of the connection's state.
func (m *Manager) arm(now Time, c *conn) {
	switch c.state {
	case StateReqSent:
		m.timers.Arm(&c.timer, c, 0, now+m.cfg.ReqTimeout)
	case StateReqReceived:
		m.timers.Arm(&c.timer, c, 0, now+m.cfg.AcceptTimeout)
	case StateRepSent:
		m.timers.Arm(&c.timer, c, 0, now+m.cfg.RepTimeout)
	case StateDreqSent:
		m.timers.Arm(&c.timer, c, 0, now+m.cfg.DreqTimeout)
	case StateTimeWait:
		m.timers.Arm(&c.timer, c, 0, now+m.cfg.TimeWait)
	default:
		m.timers.Stop(&c.timer)
	}
}

// expired says which event the timer of a state stands for.
func (m *Manager) expired(c *conn) event {
	retries := 0
	switch c.state {
	case StateReqSent:
		retries = m.cfg.ReqRetries
	case StateRepSent:
		retries = m.cfg.RepRetries
	case StateDreqSent:
		retries = m.cfg.DreqRetries
	}
	if c.tries < retries {
		return evRetry
	}
	return evGiveUp
}
