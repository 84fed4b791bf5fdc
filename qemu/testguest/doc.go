// Command testguest is the init and the only program of the guests this
// folder's integration test boots. As PID 1 it runs guestinit; as its child it
// connects to the host, says where in guest-physical memory a page with a known
// pattern lies, and echoes what it receives until the host stops sending.
package main
