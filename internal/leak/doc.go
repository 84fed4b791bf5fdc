// Package leak makes the tests of a package fail that leave goroutines, descriptors or threads in
// other network namespaces.
//
//	func TestMain(m *testing.M) { leak.Main(m) }
package leak
