package lab

var (
	Lock        = lock
	Folder      = folder
	WithSymbols = withSymbols
)
