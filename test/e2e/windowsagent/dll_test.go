// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windowsagent

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// These constants are the layout of the library: the headers, then one section with the table of
// exports.
const (
	dllBase      = 0x180000000
	sectionRVA   = 0x1000
	sectionFile  = 0x200
	optionalSize = 112 + 16*8
)

// exportDirectory is IMAGE_EXPORT_DIRECTORY.
type exportDirectory struct {
	Characteristics, TimeDateStamp     uint32
	MajorVersion, MinorVersion         uint16
	Name, Base                         uint32
	NumberOfFunctions, NumberOfNames   uint32
	AddressOfFunctions, AddressOfNames uint32
	AddressOfNameOrdinals              uint32
	Function, NamePointer              uint32
	Ordinal, _                         uint16
}

// forwardingDLL returns a library without code. It forwards its only function to another library.
func forwardingDLL(name, function, target string) []byte {
	var texts bytes.Buffer
	size := uint32(binary.Size(exportDirectory{}))
	text := func(s string) uint32 {
		at := sectionRVA + size + uint32(texts.Len())
		texts.WriteString(s + "\x00")
		return at
	}
	d := exportDirectory{Name: text(name), Base: 1, NumberOfFunctions: 1, NumberOfNames: 1, NamePointer: text(function), Function: text(target)}
	d.AddressOfFunctions, d.AddressOfNames, d.AddressOfNameOrdinals = sectionRVA+size-12, sectionRVA+size-8, sectionRVA+size-4
	var exports bytes.Buffer
	write := func(to *bytes.Buffer, value any) {
		// A buffer cannot fail, and all values have a fixed size.
		_ = binary.Write(to, binary.LittleEndian, value)
	}
	write(&exports, d)
	exports.Write(texts.Bytes())

	var file bytes.Buffer
	file.WriteString("MZ")
	file.Write(make([]byte, 0x3c-2))
	write(&file, uint32(0x40))
	file.WriteString("PE\x00\x00")
	write(&file, pe.FileHeader{
		Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 1, SizeOfOptionalHeader: optionalSize,
		Characteristics: pe.IMAGE_FILE_EXECUTABLE_IMAGE | pe.IMAGE_FILE_LARGE_ADDRESS_AWARE | pe.IMAGE_FILE_DLL,
	})
	optional := pe.OptionalHeader64{
		Magic: 0x20b, SizeOfInitializedData: sectionFile, BaseOfCode: sectionRVA, ImageBase: dllBase,
		SectionAlignment: sectionRVA, FileAlignment: sectionFile, MajorOperatingSystemVersion: 6, MajorSubsystemVersion: 6,
		SizeOfImage: 2 * sectionRVA, SizeOfHeaders: sectionFile, Subsystem: pe.IMAGE_SUBSYSTEM_WINDOWS_CUI,
		DllCharacteristics: pe.IMAGE_DLLCHARACTERISTICS_DYNAMIC_BASE | pe.IMAGE_DLLCHARACTERISTICS_NX_COMPAT,
		SizeOfStackReserve: 1 << 20, SizeOfStackCommit: 1 << 12, SizeOfHeapReserve: 1 << 20, SizeOfHeapCommit: 1 << 12, NumberOfRvaAndSizes: 16,
	}
	optional.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_EXPORT] = pe.DataDirectory{VirtualAddress: sectionRVA, Size: uint32(exports.Len())}
	write(&file, optional)
	section := pe.SectionHeader32{
		VirtualSize: uint32(exports.Len()), VirtualAddress: sectionRVA, SizeOfRawData: sectionFile, PointerToRawData: sectionFile,
		Characteristics: pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ,
	}
	copy(section.Name[:], ".rdata")
	write(&file, section)
	file.Write(make([]byte, sectionFile-file.Len()))
	file.Write(exports.Bytes())
	file.Write(make([]byte, 2*sectionFile-file.Len()))
	return file.Bytes()
}

func TestForwardingDLL(t *testing.T) {
	file := must.Get(pe.NewFile(bytes.NewReader(forwardingDLL("a.dll", "Function", "other.Name"))))(t)
	if len(file.Sections) != 1 || file.Machine != pe.IMAGE_FILE_MACHINE_AMD64 {
		t.Errorf("the file has %d sections for machine %#x, want one for %#x", len(file.Sections), file.Machine, pe.IMAGE_FILE_MACHINE_AMD64)
	}
	data := must.Get(file.Sections[0].Data())(t)
	for _, text := range []string{"a.dll\x00", "Function\x00", "other.Name\x00"} {
		is.True(t, bytes.Contains(data, []byte(text)), "the exports do not contain %q", text)
	}
}
