// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"slices"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
)

// EventID is the number of a message in the event log. The meaning of a number never changes.
type EventID uint32

// The messages of the event log.
const (
	EventStarted     EventID = 1
	EventStopped     EventID = 2
	EventPreshutdown EventID = 3
	EventPhase       EventID = 4
	EventProblem     EventID = 5
	EventSolved      EventID = 6
	EventFailed      EventID = 7
)

// Message is an entry of the event log.
type Message struct {
	ID EventID
	// Warning is set for messages above the level information.
	Warning bool
	Text    string
}

// Journal finds changes in the status of the agent.
type Journal struct {
	phase    state.Phase
	why      string
	problems []string
}

// Next returns the messages for the changes since the last call.
func (j *Journal) Next(s *shutdown.Status) []Message {
	var messages []Message
	phase := s.State.Phase
	if phase != j.phase || s.Why != j.why && phase != state.Armed {
		if j.phase != "" || phase != state.Armed {
			messages = append(messages, Message{ID: EventPhase, Warning: phase == state.LocalRun, Text: phaseText(s)})
		}
		j.phase, j.why = phase, s.Why
	}
	for _, problem := range s.Problems {
		if !slices.Contains(j.problems, problem) {
			messages = append(messages, Message{ID: EventProblem, Warning: true, Text: "Problem: " + problem})
		}
	}
	for _, problem := range j.problems {
		if !slices.Contains(s.Problems, problem) {
			messages = append(messages, Message{ID: EventSolved, Text: "Problem solved: " + problem})
		}
	}
	j.problems = slices.Clone(s.Problems)
	return messages
}

func phaseText(s *shutdown.Status) string {
	text := fmt.Sprintf("Phase of the node's shutdown: %s", s.State.Phase)
	if m := s.State.Maintenance; m != nil {
		text += ", NodeMaintenance " + m.Name
	}
	if s.Why != "" {
		text += ": " + s.Why
	}
	return text
}
