"""The commands of the V5 SDK: layouts, assignments of segments, coordinators."""
