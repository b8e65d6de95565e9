// @generated of the files in `proto` by tools/protos: change those, and run it.

use super::wire::{Field, Malformed, Message, Value as Wire};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HeaderValue {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) raw_value: Vec<u8>,
}

impl Message for HeaderValue {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.key.read(value),
            2 => self.value.read(value),
            3 => self.raw_value.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.key.write(1, into);
        self.value.write(2, into);
        self.raw_value.write(3, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimitDescriptor {
    pub(crate) entries: Vec<RateLimitDescriptorEntry>,
    pub(crate) limit: Option<RateLimitDescriptorRateLimitOverride>,
    pub(crate) hits_addend: Option<UInt64Value>,
    pub(crate) is_negative_hits: bool,
}

impl Message for RateLimitDescriptor {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.entries.read(value),
            2 => self.limit.read(value),
            3 => self.hits_addend.read(value),
            4 => self.is_negative_hits.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.entries.write(1, into);
        self.limit.write(2, into);
        self.hits_addend.write(3, into);
        self.is_negative_hits.write(4, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimitDescriptorEntry {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Message for RateLimitDescriptorEntry {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.key.read(value),
            2 => self.value.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.key.write(1, into);
        self.value.write(2, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimitDescriptorRateLimitOverride {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: i32,
}

impl Message for RateLimitDescriptorRateLimitOverride {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.requests_per_unit.read(value),
            2 => self.unit.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.requests_per_unit.write(1, into);
        self.unit.write(2, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimitRequest {
    pub(crate) domain: String,
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    pub(crate) hits_addend: u32,
}

impl Message for RateLimitRequest {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.domain.read(value),
            2 => self.descriptors.read(value),
            3 => self.hits_addend.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.domain.write(1, into);
        self.descriptors.write(2, into);
        self.hits_addend.write(3, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimitResponse {
    pub(crate) overall_code: i32,
    pub(crate) statuses: Vec<RateLimitResponseDescriptorStatus>,
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    pub(crate) request_headers_to_add: Vec<HeaderValue>,
    pub(crate) raw_body: Vec<u8>,
    pub(crate) dynamic_metadata: Option<Struct>,
}

impl Message for RateLimitResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.overall_code.read(value),
            2 => self.statuses.read(value),
            3 => self.response_headers_to_add.read(value),
            4 => self.request_headers_to_add.read(value),
            5 => self.raw_body.read(value),
            6 => self.dynamic_metadata.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.overall_code.write(1, into);
        self.statuses.write(2, into);
        self.response_headers_to_add.write(3, into);
        self.request_headers_to_add.write(4, into);
        self.raw_body.write(5, into);
        self.dynamic_metadata.write(6, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimitResponseDescriptorStatus {
    pub(crate) code: i32,
    pub(crate) current_limit: Option<RateLimitResponseRateLimit>,
    pub(crate) limit_remaining: u32,
    pub(crate) duration_until_reset: Option<Duration>,
}

impl Message for RateLimitResponseDescriptorStatus {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.code.read(value),
            2 => self.current_limit.read(value),
            3 => self.limit_remaining.read(value),
            4 => self.duration_until_reset.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.code.write(1, into);
        self.current_limit.write(2, into);
        self.limit_remaining.write(3, into);
        self.duration_until_reset.write(4, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateLimitResponseRateLimit {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: i32,
    pub(crate) name: String,
}

impl Message for RateLimitResponseRateLimit {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.requests_per_unit.read(value),
            2 => self.unit.read(value),
            3 => self.name.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.requests_per_unit.write(1, into);
        self.unit.write(2, into);
        self.name.write(3, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Duration {
    pub(crate) seconds: i64,
    pub(crate) nanos: i32,
}

impl Message for Duration {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.seconds.read(value),
            2 => self.nanos.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.seconds.write(1, into);
        self.nanos.write(2, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListValue {
    pub(crate) values: Vec<Value>,
}

impl Message for ListValue {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.values.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.values.write(1, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Struct {
    pub(crate) fields: Vec<StructFieldsEntry>,
}

impl Message for Struct {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.fields.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.fields.write(1, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StructFieldsEntry {
    pub(crate) key: String,
    pub(crate) value: Option<Value>,
}

impl Message for StructFieldsEntry {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.key.read(value),
            2 => self.value.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.key.write(1, into);
        self.value.write(2, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UInt64Value {
    pub(crate) value: u64,
}

impl Message for UInt64Value {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.value.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.value.write(1, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Value {
    pub(crate) null_value: Option<i32>,
    pub(crate) number_value: Option<f64>,
    pub(crate) string_value: Option<String>,
    pub(crate) bool_value: Option<bool>,
    pub(crate) struct_value: Option<Struct>,
    pub(crate) list_value: Option<ListValue>,
}

impl Message for Value {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.null_value.read(value),
            2 => self.number_value.read(value),
            3 => self.string_value.read(value),
            4 => self.bool_value.read(value),
            5 => self.struct_value.read(value),
            6 => self.list_value.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.null_value.write(1, into);
        self.number_value.write(2, into);
        self.string_value.write(3, into);
        self.bool_value.write(4, into);
        self.struct_value.write(5, into);
        self.list_value.write(6, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HealthCheckRequest {
    pub(crate) service: String,
}

impl Message for HealthCheckRequest {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.service.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.service.write(1, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HealthCheckResponse {
    pub(crate) status: i32,
}

impl Message for HealthCheckResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.status.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.status.write(1, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ErrorResponse {
    pub(crate) error_code: i32,
    pub(crate) error_message: String,
}

impl Message for ErrorResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.error_code.read(value),
            2 => self.error_message.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.error_code.write(1, into);
        self.error_message.write(2, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ExtensionNumberResponse {
    pub(crate) base_type_name: String,
    pub(crate) extension_number: Vec<i32>,
}

impl Message for ExtensionNumberResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.base_type_name.read(value),
            2 => self.extension_number.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.base_type_name.write(1, into);
        self.extension_number.write(2, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ExtensionRequest {
    pub(crate) containing_type: String,
    pub(crate) extension_number: i32,
}

impl Message for ExtensionRequest {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.containing_type.read(value),
            2 => self.extension_number.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.containing_type.write(1, into);
        self.extension_number.write(2, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FileDescriptorResponse {
    pub(crate) file_descriptor_proto: Vec<Vec<u8>>,
}

impl Message for FileDescriptorResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.file_descriptor_proto.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.file_descriptor_proto.write(1, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListServiceResponse {
    pub(crate) service: Vec<ServiceResponse>,
}

impl Message for ListServiceResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.service.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.service.write(1, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServerReflectionRequest {
    pub(crate) host: String,
    pub(crate) file_by_filename: Option<String>,
    pub(crate) file_containing_symbol: Option<String>,
    pub(crate) file_containing_extension: Option<ExtensionRequest>,
    pub(crate) all_extension_numbers_of_type: Option<String>,
    pub(crate) list_services: Option<String>,
}

impl Message for ServerReflectionRequest {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.host.read(value),
            3 => self.file_by_filename.read(value),
            4 => self.file_containing_symbol.read(value),
            5 => self.file_containing_extension.read(value),
            6 => self.all_extension_numbers_of_type.read(value),
            7 => self.list_services.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.host.write(1, into);
        self.file_by_filename.write(3, into);
        self.file_containing_symbol.write(4, into);
        self.file_containing_extension.write(5, into);
        self.all_extension_numbers_of_type.write(6, into);
        self.list_services.write(7, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServerReflectionResponse {
    pub(crate) valid_host: String,
    pub(crate) original_request: Option<ServerReflectionRequest>,
    pub(crate) file_descriptor_response: Option<FileDescriptorResponse>,
    pub(crate) all_extension_numbers_response: Option<ExtensionNumberResponse>,
    pub(crate) list_services_response: Option<ListServiceResponse>,
    pub(crate) error_response: Option<ErrorResponse>,
}

impl Message for ServerReflectionResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.valid_host.read(value),
            2 => self.original_request.read(value),
            4 => self.file_descriptor_response.read(value),
            5 => self.all_extension_numbers_response.read(value),
            6 => self.list_services_response.read(value),
            7 => self.error_response.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.valid_host.write(1, into);
        self.original_request.write(2, into);
        self.file_descriptor_response.write(4, into);
        self.all_extension_numbers_response.write(5, into);
        self.list_services_response.write(6, into);
        self.error_response.write(7, into);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServiceResponse {
    pub(crate) name: String,
}

impl Message for ServiceResponse {
    fn field(&mut self, number: u32, value: Wire<'_>) -> Result<(), Malformed> {
        match number {
            1 => self.name.read(value),
            _ => Ok(()),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        self.name.write(1, into);
    }
}

/// What a field of this kind may be.
pub(crate) struct HealthCheckResponseServingStatus;

impl HealthCheckResponseServingStatus {
    pub(crate) const UNKNOWN: i32 = 0;
    pub(crate) const SERVING: i32 = 1;
    pub(crate) const NOT_SERVING: i32 = 2;
    pub(crate) const SERVICE_UNKNOWN: i32 = 3;
}

/// What a field of this kind may be.
pub(crate) struct RateLimitResponseCode;

impl RateLimitResponseCode {
    pub(crate) const UNKNOWN: i32 = 0;
    pub(crate) const OK: i32 = 1;
    pub(crate) const OVER_LIMIT: i32 = 2;
}

/// What a field of this kind may be.
pub(crate) struct RateLimitResponseRateLimitUnit;

impl RateLimitResponseRateLimitUnit {
    pub(crate) const UNKNOWN: i32 = 0;
    pub(crate) const SECOND: i32 = 1;
    pub(crate) const MINUTE: i32 = 2;
    pub(crate) const HOUR: i32 = 3;
    pub(crate) const DAY: i32 = 4;
    pub(crate) const MONTH: i32 = 5;
    pub(crate) const YEAR: i32 = 6;
    pub(crate) const WEEK: i32 = 7;
}

/// What a field of this kind may be.
pub(crate) struct RateLimitUnit;

impl RateLimitUnit {
    pub(crate) const UNKNOWN: i32 = 0;
    pub(crate) const SECOND: i32 = 1;
    pub(crate) const MINUTE: i32 = 2;
    pub(crate) const HOUR: i32 = 3;
    pub(crate) const DAY: i32 = 4;
    pub(crate) const MONTH: i32 = 5;
    pub(crate) const YEAR: i32 = 6;
}
